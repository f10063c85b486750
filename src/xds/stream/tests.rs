//! Both variants by example; [`model`] is the same by property, [`envoy`] with the simulated Envoy.

mod envoy;
mod model;
mod outage;

use super::{DeltaStream, Holding, Protocol, Response, Said, SotwStream, Standing, Truth, Verdict};
use crate::model::Serve;
use crate::snapshot::{Door, Kind, Snapshot};
use crate::testing::world::{Pool, World, Worlds};
use crate::xds::wire::{DeltaRequest, RpcStatus, SotwRequest};

fn world(clusters: &[(&'static str, Pool)]) -> World {
    clusters.iter().map(|(name, pool)| (*name, (pool.clone(), false))).collect()
}

fn up(n: usize) -> Pool {
    Pool::Decided(vec![Serve::Healthy; n])
}

fn names(response: &Response) -> Vec<&str> {
    response.resources.iter().map(|r| &*r.name).collect()
}

fn delta(kind: Kind, subscribe: &[&str], nonce: &str) -> DeltaRequest {
    DeltaRequest {
        type_url: kind.type_url().into(),
        resource_names_subscribe: subscribe.iter().map(|n| (*n).to_owned()).collect(),
        response_nonce: nonce.into(),
        ..Default::default()
    }
}

fn sotw(kind: Kind, names: &[&str], nonce: &str) -> SotwRequest {
    SotwRequest {
        type_url: kind.type_url().into(),
        resource_names: names.iter().map(|n| (*n).to_owned()).collect(),
        response_nonce: nonce.into(),
        ..Default::default()
    }
}

fn refusal() -> Option<RpcStatus> {
    Some(RpcStatus { code: 13, message: "no".into() })
}

/// A delta stream with CDS and the EDS of `c` acknowledged.
fn settled_delta(snapshot: &Snapshot) -> DeltaStream {
    let mut stream = DeltaStream::new(Door::Aggregated);
    stream.on_request(&delta(Kind::Cluster, &[], "")).unwrap();
    let cds = stream.next(snapshot).unwrap();
    assert_eq!(cds.kind, Kind::Cluster);
    stream.on_request(&delta(Kind::Cluster, &[], &cds.nonce)).unwrap();
    stream.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    let eds = stream.next(snapshot).unwrap();
    assert_eq!(names(&eds), ["c"]);
    stream.on_request(&delta(Kind::Endpoints, &[], &eds.nonce)).unwrap();
    assert_eq!(stream.next(snapshot), None);
    stream
}

fn settled_sotw(snapshot: &Snapshot) -> (SotwStream, String, String) {
    let mut stream = SotwStream::new(Door::Aggregated);
    stream.on_request(&sotw(Kind::Cluster, &[], "")).unwrap();
    let cds = stream.next(snapshot).unwrap();
    stream.on_request(&sotw(Kind::Cluster, &[], &cds.nonce)).unwrap();
    stream.on_request(&sotw(Kind::Endpoints, &["c"], "")).unwrap();
    let eds = stream.next(snapshot).unwrap();
    stream.on_request(&sotw(Kind::Endpoints, &["c"], &eds.nonce)).unwrap();
    assert_eq!(stream.next(snapshot), None);
    (stream, cds.nonce, eds.nonce)
}

#[test]
fn a_cluster_without_a_verdict_is_left_unanswered() {
    let mut worlds = Worlds::default();
    let before = worlds.publish(&world(&[("c", Pool::Undecided)]));
    let mut d = DeltaStream::new(Door::Aggregated);
    d.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    assert_eq!(d.next(&before), None);
    let mut s = SotwStream::new(Door::Aggregated);
    s.on_request(&sotw(Kind::Endpoints, &["c"], "")).unwrap();
    assert_eq!(s.next(&before), None);
    let after = worlds.publish(&world(&[("c", up(1))]));
    assert_eq!(names(&d.next(&after).unwrap()), ["c"]);
    assert_eq!(names(&s.next(&after).unwrap()), ["c"]);
}

#[test]
fn a_restart_with_the_same_world_sends_one_empty_delta_answer_and_no_resource() {
    // Case 77.
    let mut worlds = Worlds::default();
    let snapshot = worlds.publish(&world(&[("c", up(2))]));
    let held = |kind: Kind| {
        let set = snapshot.set(kind);
        set.resources.values().map(|r| (r.name.to_string(), r.version.to_string())).collect()
    };
    let mut stream = DeltaStream::new(Door::Aggregated);
    for (kind, subscribe) in [(Kind::Cluster, &[][..]), (Kind::Endpoints, &["c"][..])] {
        let request = DeltaRequest { initial_resource_versions: held(kind), ..delta(kind, subscribe, "") };
        stream.on_request(&request).unwrap();
        let answer = stream.next(&snapshot).unwrap();
        assert_eq!((answer.kind, answer.resources.len(), answer.removed.len()), (kind, 0, 0));
        assert_eq!(stream.next(&snapshot), None);
    }
}

#[test]
fn what_was_removed_during_an_outage_is_removed_on_reconnect() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(2))]));
    let mut stream = DeltaStream::new(Door::Aggregated);
    let held = [("gone".to_owned(), "1".to_owned())].into();
    stream
        .on_request(&DeltaRequest { initial_resource_versions: held, ..delta(Kind::Cluster, &[], "") })
        .unwrap();
    let first = stream.next(&snapshot).unwrap();
    assert_eq!(names(&first), ["c"]);
    assert_eq!(stream.next(&snapshot), None, "what leads to it may not have been asked for yet");
    stream.on_request(&delta(Kind::Cluster, &[], &first.nonce)).unwrap();
    let second = stream.next(&snapshot).unwrap();
    assert_eq!(second.removed, ["gone".into()]);
}

#[test]
fn an_undecided_cluster_that_the_client_holds_is_not_called_removed() {
    let snapshot = Worlds::default().publish(&world(&[("c", Pool::Undecided)]));
    let mut stream = DeltaStream::new(Door::Aggregated);
    let held = [("c".to_owned(), "1".to_owned())].into();
    stream
        .on_request(&DeltaRequest { initial_resource_versions: held, ..delta(Kind::Endpoints, &["c"], "") })
        .unwrap();
    assert_eq!(stream.next(&snapshot), None);
}

#[test]
fn a_fleet_that_loads_is_told_to_newcomers_and_takes_nothing_from_those_who_hold_something() {
    let mut worlds = Worlds::default();
    let loading = worlds.publish(&world(&[("c", Pool::Loading(2))]));
    let mut newcomer = DeltaStream::new(Door::Aggregated);
    newcomer.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    assert_eq!(names(&newcomer.next(&loading).unwrap()), ["c"]);
    let mut holder = DeltaStream::new(Door::Aggregated);
    let held = [("c".to_owned(), "1".to_owned())].into();
    let request = DeltaRequest { initial_resource_versions: held, ..delta(Kind::Endpoints, &["c"], "") };
    holder.on_request(&request).unwrap();
    assert_eq!(holder.next(&loading), None);

    let mut sotw_newcomer = SotwStream::new(Door::Aggregated);
    sotw_newcomer.on_request(&sotw(Kind::Endpoints, &["c"], "")).unwrap();
    assert_eq!(names(&sotw_newcomer.next(&loading).unwrap()), ["c"]);
    let mut sotw_holder = SotwStream::new(Door::Aggregated);
    let request = SotwRequest { version_info: "1".into(), ..sotw(Kind::Endpoints, &["c"], "") };
    sotw_holder.on_request(&request).unwrap();
    assert_eq!(sotw_holder.next(&loading), None);

    let serving = worlds.publish(&world(&[("c", up(2))]));
    assert_eq!(names(&holder.next(&serving).unwrap()), ["c"]);
    assert_eq!(names(&sotw_holder.next(&serving).unwrap()), ["c"]);
}

#[test]
fn a_first_request_without_a_nonce_is_always_answered_in_full() {
    // Case 70.
    let snapshot = Worlds::default().publish(&world(&[("c", up(2))]));
    let mut stream = SotwStream::new(Door::Aggregated);
    let version =
        crate::snapshot::ResourceSet::version_of(snapshot.set(Kind::Cluster).resources.values()).to_string();
    stream
        .on_request(&SotwRequest { version_info: version.clone(), ..sotw(Kind::Cluster, &[], "") })
        .unwrap();
    let answer = stream.next(&snapshot).unwrap();
    assert_eq!((names(&answer), &*answer.version), (vec!["c"], &*version));
}

#[test]
fn several_requests_without_a_nonce_are_all_honoured() {
    // Case 76.
    let snapshot =
        Worlds::default().publish(&world(&[("r1", up(1)), ("r2", up(1)), ("r3", up(1)), ("r4", up(1))]));
    let mut stream = SotwStream::new(Door::Aggregated);
    stream.on_request(&sotw(Kind::Endpoints, &["r1"], "")).unwrap();
    assert_eq!(names(&stream.next(&snapshot).unwrap()), ["r1"]);
    let all = ["r1", "r2", "r3", "r4"];
    stream.on_request(&sotw(Kind::Endpoints, &all, "")).unwrap();
    for name in all {
        let response = stream.next(&snapshot).unwrap();
        assert_eq!(names(&response), [name]);
        stream.on_request(&sotw(Kind::Endpoints, &all, &response.nonce)).unwrap();
    }
    assert_eq!(stream.next(&snapshot), None);
}

#[test]
fn endpoints_follow_their_cluster_when_it_changes_though_they_are_the_same() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(2))]));
    let second = worlds.publish(&world(&[("c", up(3))]));
    let mut stream = settled_delta(&first);
    // The same endpoints again, but another cluster resource: as a reload of `connect_timeout` does.
    let kinds: Vec<Kind> = std::iter::from_fn(|| stream.next(&second)).map(|r| r.kind).collect();
    assert_eq!(kinds, [Kind::Cluster, Kind::Endpoints]);
    let (mut stream, cds, _) = settled_sotw(&first);
    let kinds: Vec<Kind> = std::iter::from_fn(|| stream.next(&second)).map(|r| r.kind).collect();
    assert_eq!(kinds, [Kind::Cluster, Kind::Endpoints], "EDS does not wait for the ACK of CDS ({cds})");
}

#[test]
fn a_cluster_removed_and_added_again_gets_its_endpoints_again() {
    // go-control-plane#583 and envoy#3355: the version is the same, and the client's nonce may be an old one.
    let mut worlds = Worlds::default();
    let with = world(&[("c", up(2))]);
    let first = worlds.publish(&with);
    let without = worlds.publish(&world(&[]));
    let again = worlds.publish(&with);

    let mut stream = settled_delta(&first);
    let removal = stream.next(&without).unwrap();
    assert_eq!((removal.kind, &removal.removed[..]), (Kind::Endpoints, &["c".into()][..]));
    let removal = stream.next(&without).unwrap();
    assert_eq!((removal.kind, &removal.removed[..]), (Kind::Cluster, &["c".into()][..]));
    stream.on_request(&delta(Kind::Cluster, &[], &removal.nonce)).unwrap();
    let unsubscribe =
        DeltaRequest { resource_names_unsubscribe: vec!["c".into()], ..delta(Kind::Endpoints, &[], "") };
    stream.on_request(&unsubscribe).unwrap();
    assert_eq!(stream.next(&without), None);
    let cds = stream.next(&again).unwrap();
    assert_eq!((cds.kind, names(&cds)), (Kind::Cluster, vec!["c"]));
    stream.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    let eds = stream.next(&again);
    assert!(eds.is_none(), "the removal has not been acknowledged");
    stream.on_request(&delta(Kind::Endpoints, &[], "3")).unwrap(); // the ACK of the endpoints' removal
    assert_eq!(names(&stream.next(&again).unwrap()), ["c"]);

    for ancient in [true, false] {
        let (mut stream, _, eds) = settled_sotw(&first);
        let cds = stream.next(&without).unwrap();
        assert!(cds.resources.is_empty());
        stream.on_request(&sotw(Kind::Cluster, &[], &cds.nonce)).unwrap();
        stream.on_request(&sotw(Kind::Endpoints, &[], &eds)).unwrap();
        let cds = stream.next(&again).unwrap();
        stream.on_request(&sotw(Kind::Cluster, &[], &cds.nonce)).unwrap();
        let nonce = if ancient { "1" } else { &eds };
        stream.on_request(&sotw(Kind::Endpoints, &["c"], nonce)).unwrap();
        assert_eq!(names(&stream.next(&again).unwrap()), ["c"]);
    }
}

#[test]
fn endpoints_never_come_before_their_cluster_is_back() {
    // The client still asks for the endpoints of a cluster that was taken away, and the next answer about clusters
    // has to wait for its ACK.
    let mut worlds = Worlds::default();
    let with = world(&[("c", up(2))]);
    let first = worlds.publish(&with);
    let without = worlds.publish(&world(&[]));
    let again = worlds.publish(&world(&[("c", up(1))]));
    let mut stream = settled_delta(&first);
    let endpoints = stream.next(&without).unwrap();
    let clusters = stream.next(&without).unwrap();
    assert_eq!(clusters.kind, Kind::Cluster);
    stream.on_request(&delta(Kind::Endpoints, &[], &endpoints.nonce)).unwrap();
    assert_eq!(stream.next(&again), None);
    stream.on_request(&delta(Kind::Cluster, &[], &clusters.nonce)).unwrap();
    let kinds: Vec<Kind> = std::iter::from_fn(|| stream.next(&again)).map(|r| r.kind).collect();
    assert_eq!(kinds, [Kind::Cluster, Kind::Endpoints]);

    let (mut stream, ..) = settled_sotw(&first);
    let clusters = stream.next(&without).unwrap();
    assert_eq!(stream.next(&again), None);
    stream.on_request(&sotw(Kind::Cluster, &[], &clusters.nonce)).unwrap();
    let kinds: Vec<Kind> = std::iter::from_fn(|| stream.next(&again)).map(|r| r.kind).collect();
    assert_eq!(kinds, [Kind::Cluster, Kind::Endpoints]);
}

#[test]
fn a_listener_that_takes_over_an_address_comes_with_the_removal_of_the_one_before() {
    let mut worlds = Worlds::default();
    let old: World = [("c", (up(1), true))].into();
    let new: World = [("d", (up(1), true))].into();
    let (first, second) = (worlds.publish(&old), worlds.publish(&new));
    let mut stream = DeltaStream::new(Door::Aggregated);
    stream.on_request(&delta(Kind::Listener, &[], "")).unwrap();
    let listeners = stream.next(&first).unwrap();
    stream.on_request(&delta(Kind::Listener, &[], &listeners.nonce)).unwrap();
    let moved = stream.next(&second).unwrap();
    assert_eq!((names(&moved), &moved.removed[..]), (vec!["d"], &["c".into()][..]));
}

#[test]
fn listeners_wait_until_their_clusters_are_acknowledged() {
    // Envoy acknowledges a cluster when it is warm: a route that came before would lead nowhere.
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(1))]));
    let routed: World = [("c", (up(3), false)), ("d", (up(1), true))].into();
    let second = worlds.publish(&routed);

    let mut stream = settled_delta(&first);
    stream.on_request(&delta(Kind::Listener, &[], "")).unwrap();
    let listeners = stream.next(&first).unwrap();
    stream.on_request(&delta(Kind::Listener, &[], &listeners.nonce)).unwrap();
    let under_way: Vec<Response> = std::iter::from_fn(|| stream.next(&second)).collect();
    assert!(under_way.iter().all(|r| r.kind < Kind::Listener), "{under_way:?}");
    for response in under_way {
        stream.on_request(&delta(response.kind, &[], &response.nonce)).unwrap();
    }
    assert_eq!(stream.next(&second).unwrap().kind, Kind::Listener);

    let (mut stream, ..) = settled_sotw(&first);
    stream.on_request(&sotw(Kind::Listener, &[], "")).unwrap();
    let listeners = stream.next(&first).unwrap();
    stream.on_request(&sotw(Kind::Listener, &[], &listeners.nonce)).unwrap();
    let under_way: Vec<Response> = std::iter::from_fn(|| stream.next(&second)).collect();
    assert!(under_way.iter().all(|r| r.kind < Kind::Listener), "{under_way:?}");
    for response in under_way {
        let wanted: &[&str] = if response.kind == Kind::Endpoints { &["c"] } else { &[] };
        stream.on_request(&sotw(response.kind, wanted, &response.nonce)).unwrap();
    }
    assert_eq!(stream.next(&second).unwrap().kind, Kind::Listener);
}

#[test]
fn a_response_that_a_client_ignored_does_not_swallow_its_next_subscription() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(1)), ("d", up(1))]));
    let (mut stream, _, old) = settled_sotw(&snapshot);
    stream.on_request(&sotw(Kind::Endpoints, &["c", "d"], &old)).unwrap();
    let ignored = stream.next(&snapshot).unwrap();
    assert_eq!(names(&ignored), ["d"]);
    // Never acknowledged; the client drops the name and asks for it again, still with its old nonce.
    stream.on_request(&sotw(Kind::Endpoints, &["c"], &old)).unwrap();
    stream.on_request(&sotw(Kind::Endpoints, &["c", "d"], &old)).unwrap();
    assert_eq!(names(&stream.next(&snapshot).unwrap()), ["d"]);
}

#[test]
fn a_refused_version_is_never_sent_again_and_a_changed_one_is() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(1))]));
    let bad = worlds.publish(&world(&[("c", up(2))]));
    let good = worlds.publish(&world(&[("c", up(3))]));

    let mut stream = settled_delta(&first);
    let mut sent = Vec::new();
    while let Some(response) = stream.next(&bad) {
        let request = DeltaRequest { error_detail: refusal(), ..delta(response.kind, &[], &response.nonce) };
        let verdict = stream.on_request(&request).unwrap();
        assert!(matches!(verdict, Verdict::Nacked(..)));
        sent.push(response.kind);
    }
    assert_eq!(sent, [Kind::Cluster, Kind::Endpoints]);
    assert_eq!(stream.next(&bad), None);
    assert_eq!(stream.next(&good).unwrap().kind, Kind::Cluster);

    let (mut stream, cds, eds) = settled_sotw(&first);
    let mut sent = Vec::new();
    while let Some(response) = stream.next(&bad) {
        let (names, old): (&[&str], _) =
            if response.kind == Kind::Cluster { (&[], &cds) } else { (&["c"], &eds) };
        let nack = SotwRequest {
            version_info: old.clone(),
            error_detail: refusal(),
            ..sotw(response.kind, names, &response.nonce)
        };
        stream.on_request(&nack).unwrap();
        sent.push(response.kind);
    }
    assert_eq!(sent, [Kind::Cluster, Kind::Endpoints]);
    assert_eq!(stream.next(&good).unwrap().kind, Kind::Cluster);
}

#[test]
fn an_acknowledgement_of_an_unknown_nonce_settles_nothing() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(1))]));
    let mut stream = settled_delta(&snapshot);
    assert_eq!(stream.on_request(&delta(Kind::Endpoints, &[], "777")).unwrap(), Verdict::None);
    let (mut stream, _, _) = settled_sotw(&snapshot);
    assert_eq!(stream.on_request(&sotw(Kind::Endpoints, &["c"], "777")).unwrap(), Verdict::None);
    assert_eq!(stream.next(&snapshot), None);
}

#[test]
fn the_last_cluster_can_be_removed() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(1))]));
    let none = worlds.publish(&world(&[]));
    let (mut stream, ..) = settled_sotw(&first);
    let empty = stream.next(&none).unwrap();
    assert_eq!((empty.kind, empty.resources.len()), (Kind::Cluster, 0));
}

#[test]
fn a_type_that_is_not_served_is_ignored() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(1))]));
    let mut stream = DeltaStream::new(Door::Endpoints);
    stream.on_request(&delta(Kind::Cluster, &[], "")).unwrap();
    assert_eq!(stream.next(&snapshot), None);
    let mut stream = SotwStream::new(Door::Aggregated);
    stream
        .on_request(&SotwRequest { type_url: "type.googleapis.com/x.Secret".into(), ..Default::default() })
        .unwrap();
    assert_eq!(stream.next(&snapshot), None);
}

#[test]
fn more_names_than_any_fleet_has_end_the_stream() {
    let many: Vec<String> = (0..=super::MAX_NAMES).map(|n| n.to_string()).collect();
    let request = DeltaRequest {
        type_url: Kind::Endpoints.type_url().into(),
        resource_names_subscribe: many.clone(),
        ..Default::default()
    };
    assert!(DeltaStream::new(Door::Aggregated).on_request(&request).is_err());
    let request = SotwRequest {
        type_url: Kind::Endpoints.type_url().into(),
        resource_names: many,
        ..Default::default()
    };
    assert!(SotwStream::new(Door::Aggregated).on_request(&request).is_err());
}

#[test]
fn a_drain_under_way_is_not_settled_by_a_request_that_crossed_it() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(2)), ("d", up(1))]));
    let (mut stream, _, eds) = settled_sotw(&first);
    let drained =
        worlds.publish(&world(&[("c", Pool::Decided(vec![Serve::Draining, Serve::Healthy])), ("d", up(1))]));
    let push = stream.next(&drained).unwrap();
    assert_eq!(names(&push), ["c"]);
    let resource = drained.set(Kind::Endpoints).resources.get("c").unwrap().clone();
    assert!(!stream.has_settled("c", &resource), "nothing acknowledged yet");
    // Envoy asks for one more cluster's endpoints before it has read the push: its nonce is the old one.
    stream.on_request(&sotw(Kind::Endpoints, &["c", "d"], &eds)).unwrap();
    assert!(!stream.has_settled("c", &resource), "still nothing acknowledged");
}

#[test]
fn a_refusal_of_a_response_that_was_crossed_is_heard() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(2)), ("d", up(1))]));
    let (mut stream, _, eds) = settled_sotw(&first);
    let bad =
        worlds.publish(&world(&[("c", Pool::Decided(vec![Serve::Draining, Serve::Healthy])), ("d", up(1))]));
    let push = stream.next(&bad).unwrap();
    stream.on_request(&sotw(Kind::Endpoints, &["c", "d"], &eds)).unwrap();
    let nack = SotwRequest { error_detail: refusal(), ..sotw(Kind::Endpoints, &["c", "d"], &push.nonce) };
    assert!(matches!(stream.on_request(&nack).unwrap(), Verdict::Nacked(..)));
}

#[test]
fn endpoints_and_routes_have_no_wildcard() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(2))]));
    let mut stream = DeltaStream::new(Door::Endpoints);
    stream.on_request(&delta(Kind::Endpoints, &["*"], "")).unwrap();
    let answer = stream.next(&first).unwrap();
    assert_eq!((names(&answer).len(), &answer.removed[..]), (0, &["*".into()][..]));
    let mut stream = SotwStream::new(Door::Endpoints);
    stream.on_request(&sotw(Kind::Endpoints, &["*"], "")).unwrap();
    assert!(stream.next(&first).unwrap().resources.is_empty());
}

#[test]
fn what_is_held_back_is_not_sent_until_it_may_be_tried_again_or_is_another() {
    // Case 86.
    let mut worlds = Worlds::default();
    let one = worlds.publish(&world(&[("c", up(1))]));
    let (mut delta_stream, mut sotw_stream) =
        (DeltaStream::new(Door::Aggregated), SotwStream::new(Door::Aggregated));
    delta_stream.on_request(&delta(Kind::Cluster, &[], "")).unwrap();
    sotw_stream.on_request(&sotw(Kind::Cluster, &[], "")).unwrap();
    let sent = [delta_stream.next(&one).unwrap(), sotw_stream.next(&one).unwrap()];
    let suspects = [delta_stream.suspect(&sent[0].nonce), sotw_stream.suspect(&sent[1].nonce)];
    let [Some(cluster), Some(list)] = &suspects else { panic!("{suspects:?}") };
    assert_eq!((cluster.title(), list.title()), ("c", "*"));
    assert_eq!(delta_stream.suspect("another"), None);

    // The client has walked out, and comes back.
    (delta_stream, sotw_stream) = (DeltaStream::new(Door::Aggregated), SotwStream::new(Door::Aggregated));
    delta_stream.hold_back(cluster);
    sotw_stream.hold_back(list);
    delta_stream.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    sotw_stream.on_request(&sotw(Kind::Endpoints, &["c"], "")).unwrap();
    delta_stream.on_request(&delta(Kind::Cluster, &["c"], "")).unwrap();
    sotw_stream.on_request(&sotw(Kind::Cluster, &["c"], "")).unwrap();
    let told = |next: &mut dyn FnMut() -> Option<Response>| {
        let all = std::iter::from_fn(next).filter(|r| !r.resources.is_empty());
        all.map(|r| r.kind).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut || delta_stream.next(&one)), [Kind::Endpoints]);
    assert_eq!(told(&mut || sotw_stream.next(&one)), [Kind::Endpoints]);
    delta_stream.try_again(cluster);
    sotw_stream.try_again(list);
    assert_eq!(told(&mut || delta_stream.next(&one))[..1], [Kind::Cluster]);
    assert_eq!(told(&mut || sotw_stream.next(&one))[..1], [Kind::Cluster]);

    let (mut delta_stream, mut sotw_stream) =
        (DeltaStream::new(Door::Aggregated), SotwStream::new(Door::Aggregated));
    delta_stream.hold_back(cluster);
    sotw_stream.hold_back(list);
    delta_stream.on_request(&delta(Kind::Cluster, &[], "")).unwrap();
    sotw_stream.on_request(&sotw(Kind::Cluster, &[], "")).unwrap();
    let two = worlds.publish(&world(&[("c", up(2))]));
    assert_eq!(told(&mut || delta_stream.next(&two)), [Kind::Cluster], "another version");
    assert_eq!(told(&mut || sotw_stream.next(&two)), [Kind::Cluster], "another list");
}

#[test]
fn what_a_client_refused_to_change_is_taken_from_it_when_it_goes() {
    let mut worlds = Worlds::default();
    let one = worlds.publish(&world(&[("c", up(1))]));
    let mut stream = DeltaStream::new(Door::Aggregated);
    stream.on_request(&delta(Kind::Cluster, &[], "")).unwrap();
    let first = stream.next(&one).unwrap();
    stream.on_request(&delta(Kind::Cluster, &[], &first.nonce)).unwrap();
    let other = stream.next(&worlds.publish(&world(&[("c", up(2))]))).unwrap();
    let nack = DeltaRequest { error_detail: refusal(), ..delta(Kind::Cluster, &[], &other.nonce) };
    stream.on_request(&nack).unwrap();
    let removal = stream.next(&worlds.publish(&world(&[]))).unwrap();
    assert_eq!(removal.removed, ["c".into()], "it has the first one still");
}

/// What the server says of `name`.
fn holding_of(stream: &impl Protocol, snapshot: &Snapshot, kind: Kind, name: &str) -> Holding {
    let mut all = stream.holdings(snapshot).into_iter();
    all.find(|holding| holding.kind == kind && *holding.name == *name).unwrap()
}

#[test]
fn what_a_client_refused_to_give_up_it_holds_and_its_endpoints_go_on() {
    let mut worlds = Worlds::default();
    let one = worlds.publish(&world(&[("c", up(1))]));
    let two = worlds.publish(&world(&[("c", up(2))]));
    let mut stream = settled_delta(&one);
    let held = |stream: &DeltaStream, snapshot: &Snapshot, kind: Kind| {
        let Holding { held, truth, sent, refused, .. } = holding_of(stream, snapshot, kind, "c");
        let version = one.set(kind).resources.get("c").map(|r| r.version.clone());
        (held.is_some() && held == version, truth, sent, refused)
    };
    // It refuses the cluster's other version: that is parked.
    let cluster = stream.next(&two).unwrap();
    let nack = DeltaRequest { error_detail: refusal(), ..delta(Kind::Cluster, &[], &cluster.nonce) };
    stream.on_request(&nack).unwrap();
    let endpoints = stream.next(&two).unwrap();
    stream.on_request(&delta(Kind::Endpoints, &[], &endpoints.nonce)).unwrap();

    let none = worlds.publish(&world(&[]));
    let [endpoints, cluster] = [stream.next(&none).unwrap(), stream.next(&none).unwrap()];
    assert_eq!(cluster.removed, ["c".into()]);
    let told = (true, Truth::Nothing, Some(Said::Removal), None);
    assert_eq!(held(&stream, &none, Kind::Cluster), told, "it may not even have read that");
    for response in [endpoints, cluster] {
        let nack = DeltaRequest { error_detail: refusal(), ..delta(response.kind, &[], &response.nonce) };
        stream.on_request(&nack).unwrap();
    }
    assert_eq!(stream.next(&none), None, "that is not said again");
    let refused = (true, Truth::Nothing, None, Some(Said::Removal));
    assert_eq!(held(&stream, &none, Kind::Cluster), refused);
    assert_eq!(holding_of(&stream, &none, Kind::Cluster, "c").standing(), Standing::Refused);

    // Its other version stays parked, but the client has the cluster.
    let back = worlds.publish(&world(&[("c", Pool::Decided(vec![Serve::Draining, Serve::Healthy]))]));
    let next = stream.next(&back).unwrap();
    assert_eq!((next.kind, names(&next)), (Kind::Endpoints, vec!["c"]));
    assert_eq!(stream.next(&back), None);
}

#[test]
fn endpoints_that_come_again_with_their_cluster_are_held_meanwhile() {
    let mut worlds = Worlds::default();
    let one = worlds.publish(&world(&[("c", up(1))]));
    let two = worlds.publish(&world(&[("c", up(2))]));
    let version = one.set(Kind::Endpoints).resources.get("c").map(|r| r.version.clone());
    let mut d = settled_delta(&one);
    let (mut s, ..) = settled_sotw(&one);
    for kind in [Kind::Cluster, Kind::Endpoints] {
        assert_eq!((d.next(&two).unwrap().kind, s.next(&two).unwrap().kind), (kind, kind));
        assert_eq!(holding_of(&d, &two, Kind::Endpoints, "c").held, version, "{kind:?} sent");
        assert_eq!(holding_of(&s, &two, Kind::Endpoints, "c").held, version, "{kind:?} sent");
    }
}

#[test]
fn endpoints_do_not_wait_for_a_cluster_that_a_client_refused_to_give_up() {
    let mut worlds = Worlds::default();
    let one = worlds.publish(&world(&[("c", up(1))]));
    let (mut stream, ..) = settled_sotw(&one);
    let without = stream.next(&worlds.publish(&world(&[]))).unwrap();
    assert_eq!((without.kind, without.resources.len()), (Kind::Cluster, 0));
    let nack = SotwRequest { error_detail: refusal(), ..sotw(Kind::Cluster, &[], &without.nonce) };
    stream.on_request(&nack).unwrap();
    let back = worlds.publish(&world(&[("c", Pool::Decided(vec![Serve::Draining]))]));
    let next = stream.next(&back).unwrap();
    assert_eq!((next.kind, names(&next)), (Kind::Endpoints, vec!["c"]), "the cluster is as it was");
}
