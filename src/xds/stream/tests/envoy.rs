//! Both variants against the simulated Envoy, byte by byte but without a socket: hundreds of worlds, and whatever
//! delay there may be on the way there and back.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use prost::Message;

use super::super::{DeltaStream, Protocol, SotwStream};
use crate::model::Serve;
use crate::pb::envoy::config::core::v3::HealthStatus;
use crate::pb::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
use crate::snapshot::{Door, Kind, Snapshot};
use crate::testing::sim_envoy::{self, Asks, Entry, Machine, Node, Request, Response, Wire};
use crate::testing::world::{Pool, World, Worlds};
use bytes::BufMut as _;

use crate::xds::wire::{DeltaRequest, Frames, SotwRequest, put};

/// Responses on the way to a client that reads slowly; then the line is full.
const LINE: usize = 6;
/// The gRPC prefix of a message.
const PREFIX: usize = 5;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

enum Server {
    Delta(DeltaStream),
    Sotw(SotwStream),
}

impl Server {
    fn new(wire: Wire) -> Self {
        match wire {
            Wire::Delta => Self::Delta(DeltaStream::new(Door::Aggregated)),
            Wire::Sotw => Self::Sotw(SotwStream::new(Door::Aggregated)),
        }
    }
}

/// An Envoy, its stream, and what is on the way.
struct Line {
    wire: Wire,
    server: Server,
    envoy: Machine,
    requests: VecDeque<Vec<u8>>,
    responses: VecDeque<Vec<u8>>,
    /// The server cannot know what a SotW client held when it came.
    in_order: bool,
}

impl Line {
    fn new(wire: Wire) -> Self {
        let node = Node { id: "sim".to_owned(), cluster: "test".to_owned() };
        let mut line = Self {
            wire,
            server: Server::new(wire),
            envoy: Machine::new(wire, node, Asks::everything(), Vec::new()),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            in_order: true,
        };
        line.open();
        line
    }

    /// The line is cut, with all that was on it, and the Envoy comes back.
    fn cut(&mut self) {
        self.server = Server::new(self.wire);
        self.requests.clear();
        self.responses.clear();
        self.envoy.closed();
        self.in_order &= self.wire == Wire::Delta;
        self.open();
    }

    fn open(&mut self) {
        let requests = self.envoy.open();
        self.say(requests);
    }

    fn say(&mut self, requests: Vec<Request>) {
        for request in requests {
            self.envoy.sent(&request);
            self.requests.push_back(match request {
                Request::Delta(m) => m.encode_to_vec(),
                Request::Sotw(m) => m.encode_to_vec(),
            });
        }
    }

    fn server_hears(&mut self) -> bool {
        let Some(bytes) = self.requests.pop_front() else { return false };
        match &mut self.server {
            Server::Delta(stream) => {
                stream.on_request(&DeltaRequest::decode(&*bytes).unwrap()).unwrap();
            }
            Server::Sotw(stream) => {
                stream.on_request(&SotwRequest::decode(&*bytes).unwrap()).unwrap();
            }
        }
        true
    }

    fn server_speaks(&mut self, snapshot: &Snapshot) -> bool {
        if self.responses.len() >= LINE {
            return false;
        }
        let response = match &mut self.server {
            Server::Delta(stream) => stream.next(snapshot),
            Server::Sotw(stream) => stream.next(snapshot),
        };
        let bytes = response.map(|response| bytes_of(&response).split_off(PREFIX));
        let spoken = bytes.is_some();
        self.responses.extend(bytes);
        spoken
    }

    fn envoy_hears(&mut self) -> bool {
        let Some(bytes) = self.responses.pop_front() else { return false };
        let response = match self.wire {
            Wire::Delta => Response::Delta(DeltaDiscoveryResponse::decode(&*bytes).unwrap()),
            Wire::Sotw => Response::Sotw(DiscoveryResponse::decode(&*bytes).unwrap()),
        };
        let clusters = self.envoy.clusters();
        let requests = self.envoy.on_response(&response);
        if self.in_order {
            self.assert_order(&clusters);
        }
        self.say(requests);
        true
    }

    /// What is referred to comes first and goes last. A cluster, its listener and its routes share a name.
    fn assert_order(&self, before: &BTreeSet<String>) {
        let entry: &Entry = self.envoy.transcript().last().unwrap();
        if matches!(entry.kind, Some(sim_envoy::Kind::Endpoint | sim_envoy::Kind::Route)) {
            assert!(entry.names.is_subset(before), "{entry} while {before:?}");
        }
        let (clusters, listeners) = (self.envoy.clusters(), self.envoy.listeners());
        assert!(listeners.is_subset(&clusters), "{entry}: listeners {listeners:?}, clusters {clusters:?}");
    }

    /// Something happens, somewhere.
    fn step(&mut self, random: &mut fastrand::Rng, snapshot: &Snapshot) {
        match random.u8(0..64) {
            0..20 => _ = self.server_hears(),
            20..40 => _ = self.server_speaks(snapshot),
            40..63 => _ = self.envoy_hears(),
            _ => self.stop_waiting(),
        }
    }

    /// A cluster that is new waits for its endpoints, and not for ever.
    fn stop_waiting(&mut self) {
        if self.envoy.waits().is_some() {
            let requests = self.envoy.stop_waiting();
            self.say(requests);
        }
    }

    /// The end of the conversation.
    fn lately(&self) -> String {
        const LINES: usize = 40;
        let said = self.envoy.transcript();
        let end = said.get(said.len().saturating_sub(LINES)..).unwrap_or_default();
        end.iter().map(|entry| format!("{entry}\n")).collect()
    }

    /// Nothing new happens any more: the Envoy ends with the truth.
    fn settle(&mut self, snapshot: &Snapshot, world: &World) {
        for round in 0.. {
            while self.server_hears() | self.server_speaks(snapshot) | self.envoy_hears() {}
            if self.envoy.waits().is_none() {
                break;
            }
            // A cluster that went before its endpoints came is given up only now; nothing else may need this.
            assert!(round < 3, "{:?}: a cluster waits for ever\n{}", self.wire, self.lately());
            self.stop_waiting();
        }
        let wire = self.wire;
        assert_eq!(self.envoy.violations(), &[] as &[String], "{wire:?}");
        let names = |which: &dyn Fn(bool) -> bool| -> BTreeSet<String> {
            let chosen = world.iter().filter(|(_, (_, routed))| which(*routed));
            chosen.map(|(name, _)| (*name).to_owned()).collect()
        };
        assert_eq!(self.envoy.clusters(), names(&|_| true), "{wire:?}");
        assert_eq!(self.envoy.listeners(), names(&|routed| routed), "{wire:?}");
        for (name, (pool, _)) in world {
            let assignment = self.envoy.assignment(name).unwrap();
            let told: Vec<_> = assignment.values().map(|endpoint| endpoint.health).collect();
            assert_eq!(told, listed(pool), "{wire:?}, {name}");
            if wire == Wire::Delta {
                let version = &*snapshot.set(Kind::Endpoints).resources[*name].version;
                assert_eq!(self.envoy.version(sim_envoy::Kind::Endpoint, name), Some(version));
            }
        }
    }
}

fn listed(pool: &Pool) -> Vec<HealthStatus> {
    let Pool::Decided(serves) = pool else { return Vec::new() };
    let health = |serve: &Serve| match serve {
        Serve::Absent => None,
        Serve::Healthy => Some(HealthStatus::Healthy),
        Serve::Degraded => Some(HealthStatus::Degraded),
        Serve::Unhealthy => Some(HealthStatus::Unhealthy),
        Serve::Draining => Some(HealthStatus::Draining),
    };
    serves.iter().filter_map(health).collect()
}

fn random_world(random: &mut fastrand::Rng) -> World {
    const SERVES: [Serve; 5] =
        [Serve::Absent, Serve::Healthy, Serve::Degraded, Serve::Unhealthy, Serve::Draining];
    let mut world = World::new();
    for name in NAMES {
        if random.u8(0..4) > 0 {
            let serves = (0..random.usize(0..4)).map(|_| SERVES[random.usize(0..SERVES.len())]).collect();
            world.insert(name, (Pool::Decided(serves), random.bool()));
        }
    }
    world
}

/// Puts lines through so many worlds, and lets them settle now and then.
fn put_through(seed: u64, lines: &mut [Line], count: usize, cuts: bool) {
    const SETTLE_EVERY: usize = 40;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut worlds = Worlds::default();
    for round in 1..=count {
        let world = random_world(&mut random);
        let snapshot: Arc<Snapshot> = worlds.publish(&world);
        for line in &mut *lines {
            if cuts && random.u8(0..8) == 0 {
                line.cut();
            }
            for _ in 0..random.usize(0..40) {
                line.step(&mut random, &snapshot);
            }
            if round.is_multiple_of(SETTLE_EVERY) {
                line.settle(&snapshot, &world);
            }
        }
        if round.is_multiple_of(SETTLE_EVERY) {
            assert_alike(lines);
        }
    }
}

/// One world, one content, whoever asks and whatever became of its streams.
fn assert_alike(lines: &[Line]) {
    let [first, rest @ ..] = lines else { return };
    for line in rest {
        assert_eq!(line.envoy.contents(), first.envoy.contents());
    }
}

#[test]
fn over_hundreds_of_worlds_what_is_referred_to_comes_first_and_goes_last() {
    // Case 73.
    put_through(73, &mut [Line::new(Wire::Delta), Line::new(Wire::Sotw)], 400, false);
}

#[test]
fn envoys_whose_lines_are_cut_at_any_point_all_end_with_the_same_content() {
    // Cases 95 and 103.
    let mut lines: Vec<Line> = [Wire::Delta, Wire::Sotw].into_iter().cycle().take(4).map(Line::new).collect();
    put_through(103, &mut lines, 200, true);
}

/// The message as it goes out, with its prefix.
fn bytes_of(response: &super::super::Response) -> Vec<u8> {
    let mut frames = Frames::default();
    put(response, &mut frames);
    let mut all = Vec::new();
    std::iter::from_fn(|| frames.pop()).for_each(|piece| all.put(piece));
    all
}
