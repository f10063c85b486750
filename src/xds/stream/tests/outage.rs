//! What a client says late, twice, or after it was away.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{delta, names, refusal, settled_delta, settled_sotw, sotw, up, world};
use crate::model::Serve;
use crate::snapshot::{Door, Kind, Snapshot};
use crate::testing::world::{Pool, World, Worlds};
use crate::xds::stream::{DeltaStream, Protocol, SotwStream, Verdict};
use crate::xds::wire::{DeltaRequest, SotwRequest};

/// Two instances in `c`, of which the first drains; those of `d` go to and fro, which is nothing to `c`.
fn drained(round: usize) -> World {
    let second = if round.is_multiple_of(2) { Serve::Unhealthy } else { Serve::Healthy };
    world(&[
        ("c", Pool::Decided(vec![Serve::Draining, Serve::Healthy])),
        ("d", Pool::Decided(vec![Serve::Healthy, second])),
    ])
}

/// The same, and the other instance of `c` has failed: what is acknowledged now is older than what there is.
fn drained_and_worse() -> World {
    world(&[("c", Pool::Decided(vec![Serve::Draining, Serve::Degraded])), ("d", up(2))])
}

#[test]
fn fifty_other_changes_before_a_late_delta_acknowledgement_neither_prove_a_drain_nor_hide_its_proof() {
    // Case 74.
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(2)), ("d", up(2))]));
    let mut stream = DeltaStream::new(Door::Aggregated);
    stream.on_request(&delta(Kind::Endpoints, &["c", "d"], "")).unwrap();
    let before: Vec<_> = std::iter::from_fn(|| stream.next(&first)).map(|r| r.nonce).collect();
    for nonce in &before {
        stream.on_request(&delta(Kind::Endpoints, &[], nonce)).unwrap();
    }
    let knows = |stream: &DeltaStream, now: &Snapshot| {
        stream.has_settled("c", &now.set(Kind::Endpoints).resources["c"])
    };
    assert!(knows(&stream, &first));
    let mut now = worlds.publish(&drained(0));
    let of_drain = stream.next(&now).unwrap();
    assert_eq!(names(&of_drain), ["c"]);
    let mut others = Vec::new();
    for round in 0..50 {
        now = worlds.publish(&drained(round));
        others.extend(std::iter::from_fn(|| stream.next(&now)));
        // Each change of `d` is acknowledged, and so is what came before the drain, once more.
        for response in others.drain(..) {
            assert_eq!(names(&response), ["d"]);
            stream.on_request(&delta(Kind::Endpoints, &[], &response.nonce)).unwrap();
        }
        stream.on_request(&delta(Kind::Endpoints, &[], &before[round % 2])).unwrap();
        assert!(!knows(&stream, &now), "round {round}");
    }
    let worse = worlds.publish(&drained_and_worse());
    stream.on_request(&delta(Kind::Endpoints, &[], &of_drain.nonce)).unwrap();
    assert!(knows(&stream, &now), "the drain is known");
    assert!(!knows(&stream, &worse), "what came after it is not");
    let later = std::iter::from_fn(|| stream.next(&worse)).find(|r| names(r) == ["c"]).unwrap();
    assert!(!knows(&stream, &worse), "sent is not known");
    stream.on_request(&delta(Kind::Endpoints, &[], &later.nonce)).unwrap();
    assert!(knows(&stream, &worse));
    // What is refused is not known, and neither is what was there before it.
    let back = worlds.publish(&drained(0));
    let refused = std::iter::from_fn(|| stream.next(&back)).find(|r| names(r) == ["c"]).unwrap();
    let nack = DeltaRequest { error_detail: refusal(), ..delta(Kind::Endpoints, &[], &refused.nonce) };
    stream.on_request(&nack).unwrap();
    assert!(!knows(&stream, &back));
}

#[test]
fn fifty_other_changes_before_a_late_sotw_acknowledgement_neither_prove_a_drain_nor_hide_its_proof() {
    // Case 74.
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(2)), ("d", up(2))]));
    let mut stream = SotwStream::new(Door::Aggregated);
    let both = ["c", "d"];
    stream.on_request(&sotw(Kind::Endpoints, &both, "")).unwrap();
    let mut before = Vec::new();
    while let Some(response) = stream.next(&first) {
        stream.on_request(&sotw(Kind::Endpoints, &both, &response.nonce)).unwrap();
        before.push(response.nonce);
    }
    let knows = |stream: &SotwStream, now: &Snapshot| {
        stream.has_settled("c", &now.set(Kind::Endpoints).resources["c"])
    };
    let mut now = worlds.publish(&drained(1));
    let of_drain = stream.next(&now).unwrap();
    assert_eq!(names(&of_drain), ["c"]);
    for round in 0..50 {
        now = worlds.publish(&drained(round));
        assert_eq!(stream.next(&now), None, "one at a time");
        let old = &before[round % 2];
        let verdict = stream.on_request(&sotw(Kind::Endpoints, &both, old)).unwrap();
        assert_eq!((verdict, knows(&stream, &now)), (Verdict::None, false), "round {round}");
    }
    let worse = worlds.publish(&drained_and_worse());
    stream.on_request(&sotw(Kind::Endpoints, &both, &of_drain.nonce)).unwrap();
    assert!(knows(&stream, &now) && !knows(&stream, &worse));
    let later = stream.next(&worse).unwrap();
    assert_eq!(names(&later), ["c"], "the newest of `c`, not fifty of `d`");
    assert!(!knows(&stream, &worse), "sent is not known");
    stream.on_request(&sotw(Kind::Endpoints, &both, &later.nonce)).unwrap();
    assert!(knows(&stream, &worse));
    let back = worlds.publish(&drained(0));
    let refused = stream.next(&back).unwrap();
    let nack = SotwRequest { error_detail: refusal(), ..sotw(Kind::Endpoints, &both, &refused.nonce) };
    stream.on_request(&nack).unwrap();
    assert!(!knows(&stream, &back));
}

#[test]
fn requests_without_a_nonce_that_come_together_are_honoured_like_those_that_come_one_by_one() {
    // Case 76: a client that has lost its server asks for one, then for four, before it has heard anything.
    let all = ["r1", "r2", "r3", "r4"];
    let snapshot = Worlds::default().publish(&world(&all.map(|name| (name, up(1)))));
    for answered_between in [false, true] {
        let mut stream = SotwStream::new(Door::Aggregated);
        stream.on_request(&sotw(Kind::Endpoints, &all[..1], "")).unwrap();
        let first = answered_between.then(|| stream.next(&snapshot).unwrap());
        stream.on_request(&sotw(Kind::Endpoints, &all, "")).unwrap();
        // The answer to the first may still be acknowledged; that changes nothing.
        if let Some(first) = first {
            stream.on_request(&sotw(Kind::Endpoints, &all, &first.nonce)).unwrap();
        }
        for name in all {
            let response = stream.next(&snapshot).unwrap();
            assert_eq!(names(&response), [name]);
            stream.on_request(&sotw(Kind::Endpoints, &all, &response.nonce)).unwrap();
        }
        assert_eq!(stream.next(&snapshot), None);

        let mut stream = DeltaStream::new(Door::Aggregated);
        stream.on_request(&delta(Kind::Endpoints, &all[..1], "")).unwrap();
        let mut told: Vec<_> =
            answered_between.then(|| stream.next(&snapshot).unwrap()).into_iter().collect();
        stream.on_request(&delta(Kind::Endpoints, &all[1..], "")).unwrap();
        told.extend(std::iter::from_fn(|| stream.next(&snapshot)));
        assert_eq!(told.iter().flat_map(names).collect::<Vec<_>>(), all);
    }
}

/// Twelve clusters, and two of them.
fn before_and_after() -> (World, World) {
    const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let of = |names: &[&'static str]| names.iter().map(|name| (*name, (up(1), false))).collect();
    (of(&NAMES), of(&NAMES[..2]))
}

fn versions(snapshot: &Snapshot, kind: Kind) -> BTreeMap<String, String> {
    let resources = snapshot.set(kind).resources.values();
    resources.map(|r| (r.name.to_string(), r.version.to_string())).collect()
}

/// A delta stream that begins with what the client holds, and what it is told before it says anything more.
fn returns(held: &Snapshot, now: &Snapshot, kind: Kind) -> (DeltaStream, Vec<super::Response>) {
    let held = versions(held, kind);
    let by_name: Vec<&str> = held.keys().map(String::as_str).collect();
    let subscribe = if kind.has_wildcard() { &[][..] } else { &by_name };
    let request = DeltaRequest { initial_resource_versions: held.clone(), ..delta(kind, subscribe, "") };
    let mut stream = DeltaStream::new(Door::Aggregated);
    stream.on_request(&request).unwrap();
    let mut told = Vec::new();
    while let Some(response) = stream.next(now) {
        stream.on_request(&delta(kind, &[], &response.nonce)).unwrap();
        told.push(response);
    }
    (stream, told)
}

#[test]
fn ten_clusters_that_went_while_the_client_was_away_are_ten_removals_and_nothing_else() {
    // Case 77.
    let mut worlds = Worlds::default();
    let (full, rest) = before_and_after();
    let (full, rest) = (worlds.publish(&full), worlds.publish(&rest));
    for kind in [Kind::Cluster, Kind::Endpoints] {
        let (_, told) = returns(&full, &rest, kind);
        let removed: Vec<Arc<str>> = told.iter().flat_map(|r| r.removed.clone()).collect();
        assert_eq!(removed.iter().map(|name| &**name).collect::<String>(), "cdefghijkl", "{kind:?}");
        assert!(told.iter().all(|r| r.resources.is_empty()), "{kind:?}");
    }
}

#[test]
fn a_client_that_comes_back_with_all_there_is_gets_one_empty_answer_for_each_type_of_delta() {
    // Case 77.
    let full = Worlds::default().publish(&before_and_after().0);
    for kind in [Kind::Cluster, Kind::Endpoints] {
        let (_, told) = returns(&full, &full, kind);
        let [one] = &told[..] else { panic!("{told:?}") };
        assert!(one.resources.is_empty() && one.removed.is_empty());
    }
}

#[test]
fn a_sotw_client_that_comes_back_is_told_everything_and_nothing_that_has_gone() {
    // Case 77: it cannot say what it holds, and takes what is left out of the list for deleted.
    let mut worlds = Worlds::default();
    let (full, rest) = before_and_after();
    let (full, rest) = (worlds.publish(&full), worlds.publish(&rest));
    for (now, count) in [(&full, 12), (&rest, 2)] {
        let mut stream = SotwStream::new(Door::Aggregated);
        let request = SotwRequest { version_info: "from before".into(), ..sotw(Kind::Cluster, &[], "") };
        stream.on_request(&request).unwrap();
        assert_eq!(stream.next(now).unwrap().resources.len(), count);
        assert_eq!(stream.next(now), None);
    }
}

#[test]
fn a_cluster_that_comes_back_and_loads_is_told_to_a_client_that_had_to_give_it_up() {
    // It came with endpoints of `c`, which are gone with the cluster: nothing is left that could be spared.
    let mut worlds = Worlds::default();
    let full = worlds.publish(&world(&[("c", up(2))]));
    let none = worlds.publish(&world(&[]));
    let loading = worlds.publish(&world(&[("c", Pool::Loading(2))]));
    let (mut stream, _) = returns(&full, &full, Kind::Endpoints);
    let removal = stream.next(&none).unwrap();
    assert_eq!(removal.removed, ["c".into()]);
    stream.on_request(&delta(Kind::Endpoints, &[], &removal.nonce)).unwrap();
    assert_eq!(names(&stream.next(&loading).unwrap()), ["c"]);
}

#[test]
fn endpoints_of_a_cluster_that_a_client_no_longer_asks_for_do_not_wait_for_it() {
    // It asks by name. The cluster went, and the client gave it up; only its endpoints are still asked for.
    let mut worlds = Worlds::default();
    let full = worlds.publish(&world(&[("c", up(2))]));
    let none = worlds.publish(&world(&[]));
    let back = worlds.publish(&world(&[("c", up(1))]));

    let mut stream = settled_delta(&full);
    let endpoints = stream.next(&none).unwrap();
    let clusters = stream.next(&none).unwrap();
    for removal in [endpoints, clusters] {
        stream.on_request(&delta(removal.kind, &[], &removal.nonce)).unwrap();
    }
    let give_up =
        DeltaRequest { resource_names_unsubscribe: vec!["*".into()], ..delta(Kind::Cluster, &[], "") };
    stream.on_request(&give_up).unwrap();
    let told = stream.next(&back).unwrap();
    assert_eq!((told.kind, names(&told)), (Kind::Endpoints, vec!["c"]));

    let (mut stream, ..) = settled_sotw(&full);
    let clusters = stream.next(&none).unwrap();
    stream.on_request(&sotw(Kind::Cluster, &["other"], &clusters.nonce)).unwrap();
    let told = stream.next(&back).unwrap();
    assert_eq!((told.kind, names(&told)), (Kind::Endpoints, vec!["c"]));
}

#[test]
fn a_client_that_comes_back_keeps_its_clusters_until_its_routes_have_been_asked_for_and_moved() {
    // All requests of a reconnect are under way at once, but they are read one by one.
    let mut worlds = Worlds::default();
    let blue = worlds.publish(&[("blue", (up(1), true))].into());
    let green = worlds.publish(&[("green", (up(2), true))].into());
    let mut stream = DeltaStream::new(Door::Aggregated);
    let again =
        |kind| DeltaRequest { initial_resource_versions: versions(&blue, kind), ..delta(kind, &[], "") };
    stream.on_request(&again(Kind::Cluster)).unwrap();
    let mut told: Vec<_> = std::iter::from_fn(|| stream.next(&green)).collect();
    assert!(told.iter().all(|r| r.removed.is_empty()), "nobody knows yet what leads to `blue`: {told:?}");
    stream.on_request(&again(Kind::Listener)).unwrap();
    for round in 0..10 {
        told.extend(std::iter::from_fn(|| stream.next(&green)));
        let Some(response) = told.get(round) else { break };
        let (kind, nonce) = (response.kind, response.nonce.clone());
        stream.on_request(&delta(kind, &[], &nonce)).unwrap();
    }
    let order: Vec<_> = told.iter().flat_map(|r| r.removed.iter().map(|_| r.kind)).collect();
    assert_eq!(order, [Kind::Listener, Kind::Cluster]);
}

#[test]
fn a_first_question_about_listeners_waits_for_clusters_that_have_not_been_sent() {
    // SotW sends no second list of clusters before the first is acknowledged, and meanwhile `d` and its listener came.
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(1))]));
    let second = worlds.publish(&[("c", (up(1), false)), ("d", (up(1), true))].into());
    let mut stream = SotwStream::new(Door::Aggregated);
    stream.on_request(&sotw(Kind::Cluster, &[], "")).unwrap();
    let clusters = stream.next(&first).unwrap();
    stream.on_request(&sotw(Kind::Listener, &[], "")).unwrap();
    assert_eq!(stream.next(&second), None);
    stream.on_request(&sotw(Kind::Cluster, &[], &clusters.nonce)).unwrap();
    let kinds: Vec<Kind> = std::iter::from_fn(|| stream.next(&second)).map(|r| r.kind).collect();
    assert_eq!(kinds, [Kind::Cluster, Kind::Listener], "both are on the way, in this order");
}

#[test]
fn a_cluster_that_nobody_speaks_for_holds_back_no_other_from_whom_it_cannot_harm() {
    let mut worlds = Worlds::default();
    let early = worlds.publish(&world(&[("c", up(1)), ("late", Pool::Unlisted)]));
    let mut newcomer = SotwStream::new(Door::Aggregated);
    newcomer.on_request(&sotw(Kind::Cluster, &[], "")).unwrap();
    let first = newcomer.next(&early).unwrap();
    assert_eq!(names(&first), ["c"], "it holds nothing that could be lost");
    newcomer.on_request(&sotw(Kind::Cluster, &[], &first.nonce)).unwrap();
    // What one that comes back holds cannot be known: leaving `late` out might delete it.
    let mut back = SotwStream::new(Door::Aggregated);
    for kind in [Kind::Cluster, Kind::Listener] {
        let request = SotwRequest { version_info: "before".into(), ..sotw(kind, &[], "") };
        back.on_request(&request).unwrap();
    }
    assert_eq!(back.next(&early), None, "listeners wait as well: what they lead to may be missing");
    let later = worlds.publish(&world(&[("c", up(1)), ("late", Pool::Undecided)]));
    for stream in [&mut newcomer, &mut back] {
        assert_eq!(names(&stream.next(&later).unwrap()), ["c", "late"]);
    }
}

#[test]
fn a_refusal_is_heard_though_the_client_has_started_over() {
    let mut worlds = Worlds::default();
    let snapshot = worlds.publish(&world(&[("c", up(1))]));
    let mut stream = SotwStream::new(Door::Aggregated);
    let whole = || sotw(Kind::Cluster, &[], "");
    stream.on_request(&whole()).unwrap();
    let first = stream.next(&snapshot).unwrap();
    stream.on_request(&whole()).unwrap();
    let again = stream.next(&snapshot).unwrap();
    assert_eq!(names(&again), ["c"], "a question without a nonce is answered");
    for response in [&first, &again] {
        let nack = SotwRequest { error_detail: refusal(), ..sotw(Kind::Cluster, &[], &response.nonce) };
        assert!(matches!(stream.on_request(&nack).unwrap(), Verdict::Nacked(Kind::Cluster, ..)));
    }
    assert_eq!(stream.next(&snapshot), None, "it has been refused");
    let grown = worlds.publish(&world(&[("c", up(1)), ("d", up(1))]));
    assert_eq!(names(&stream.next(&grown).unwrap()), ["c", "d"]);
}
