//! What peers and files may send, as plain bytes.
//!
//! Each function takes any bytes and panics if something that must hold does not. It decides nothing and is never part
//! of a release build. Called by the targets in `fuzz/`, which need a nightly compiler, and on any compiler by the
//! tests below.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::BufMut as _;
use prost::Message;

use crate::config as configs;
use crate::model::Serve;
use crate::probe::completion::Completion;
use crate::probe::sse::{Item, SseDecoder};
use crate::snapshot::{Door, Kind, Rendering, ResourceSet, Snapshot};
use crate::testing::world::{Pool, World, Worlds};
use crate::xds::stream::{DeltaStream, Protocol, Response, SotwStream};
use crate::xds::wire::{DeltaRequest, Frames, SotwRequest, put};

/// Far more than the worlds below can call for after one request.
const MOST_RESPONSES: usize = 64;

/// A config file: it is right, or it has errors that point into it.
pub fn config(bytes: &[u8]) {
    let Err(errors) = configs::parse_bytes(bytes) else { return };
    assert!(!errors.as_slice().is_empty(), "refused without a reason");
    for error in errors.as_slice() {
        assert!(error.place.line >= 1 && error.place.column >= 1, "{error}");
        assert!(!error.message.is_empty(), "{error}");
    }
}

/// The stream of a completion: a byte that says how long the pieces are in which it arrives, then the stream. However
/// it is cut, it says the same, up to the same error.
pub fn completion_stream(bytes: &[u8]) {
    let Some((cut, stream)) = bytes.split_first() else { return };
    let read = |piece: usize| -> Vec<Item> {
        let (mut decoder, mut items) = (SseDecoder::new(), Vec::new());
        for piece in stream.chunks(piece) {
            if decoder.feed(piece, &mut items).is_err() {
                break;
            }
        }
        items
    };
    let items = read(usize::from(*cut).max(1));
    assert_eq!(items, read(1), "the pieces matter");
    let mut completion = Completion::default();
    let complained = items.iter().any(|item| completion.take(item).is_err());
    if !complained {
        let _ = completion.end_of_body();
    }
}

/// What an xDS client may say: a sequence of steps, each a byte that picks the step and, for a request, the request
/// itself, with its length before it. Each request goes to the streams of its variant, one for each rendering; then
/// responses are taken until there are none.
///
/// No fuzzer guesses a type URL of sixty bytes, so its length picks one.
pub fn xds_stream(bytes: &[u8]) {
    let worlds = worlds();
    let mut world = 0;
    let mut streams = Rendering::ALL.map(Streams::new);
    let mut rest = bytes;
    while let Some((step, after)) = rest.split_first() {
        rest = after;
        match step % 3 {
            0 => world = (world + 1) % worlds.len(),
            1 => {
                let Ok(mut request) = DeltaRequest::decode_length_delimited(&mut rest) else { return };
                pick_type(&mut request.type_url);
                if streams.iter_mut().any(|s| s.delta.on_request(&request).is_err()) {
                    return; // the stream ends here
                }
            }
            _ => {
                let Ok(mut request) = SotwRequest::decode_length_delimited(&mut rest) else { return };
                pick_type(&mut request.type_url);
                if streams.iter_mut().any(|s| s.sotw.on_request(&request).is_err()) {
                    return;
                }
            }
        }
        let Some(snapshot) = worlds.get(world) else { return };
        for streams in &mut streams {
            streams.drain(snapshot);
        }
    }
}

/// A stream of each variant, of a client of one kind.
struct Streams {
    rendering: Rendering,
    delta: DeltaStream,
    sotw: SotwStream,
    nonces: [u64; 2],
}

impl Streams {
    fn new(rendering: Rendering) -> Self {
        let (mut delta, mut sotw) = (DeltaStream::new(Door::Aggregated), SotwStream::new(Door::Aggregated));
        delta.render(rendering);
        sotw.render(rendering);
        Self { rendering, delta, sotw, nonces: [0; 2] }
    }

    fn drain(&mut self, snapshot: &Snapshot) {
        let Self { rendering, delta, sotw, nonces: [of_delta, of_sotw] } = self;
        let set = |kind| &**snapshot.set_for(Door::Aggregated, *rendering, kind);
        drain(set, of_delta, || delta.next(snapshot));
        drain(set, of_sotw, || sotw.next(snapshot));
    }
}

fn pick_type(url: &mut String) {
    if let Some(kind) = Kind::ALL.get(url.len() % 5) {
        kind.type_url().clone_into(url);
    }
}

fn drain<'a>(
    set: impl Fn(Kind) -> &'a ResourceSet,
    last_nonce: &mut u64,
    mut next: impl FnMut() -> Option<Response>,
) {
    for _ in 0..MOST_RESPONSES {
        let Some(response) = next() else { return };
        let nonce: u64 = response.nonce.parse().unwrap_or_default();
        assert!(nonce > *last_nonce, "nonces rise");
        *last_nonce = nonce;
        let set = set(response.kind);
        let mut names = BTreeSet::new();
        for name in response.resources.iter().map(|r| &r.name).chain(&response.removed) {
            assert!(names.insert(name), "{name} is named twice in one response");
            assert!(!set.withheld.contains(name), "{name} has no verdict, and nothing may be said of it");
        }
        for resource in &response.resources {
            let there = set.resources.get(&resource.name);
            // A SotW list keeps what has gone until nothing can refer to it.
            let lingers = there.is_none() && !response.delta && response.kind == Kind::Cluster;
            assert!(lingers || there == Some(resource), "{} as it is not", resource.name);
        }
        let mut frames = Frames::default();
        put(&response, &mut frames);
        let mut all = Vec::new();
        std::iter::from_fn(|| frames.pop()).for_each(|piece| all.put(piece));
        let length = all.get(1..5).and_then(|l| l.try_into().ok()).map(u32::from_be_bytes);
        assert_eq!(length, u32::try_from(all.len() - 5).ok(), "the length before the message is its length");
    }
    unreachable!("no end of responses");
}

/// Small worlds to go round in: clusters come, go and change, one has no verdict, and then it loads.
fn worlds() -> Vec<Arc<Snapshot>> {
    let up = |n| Pool::Decided(vec![Serve::Healthy; n]);
    let worlds: [World; 4] = [
        [("a", (up(1), true)), ("b", (up(2), false)), ("c", (Pool::Undecided, false))].into(),
        [("b", (Pool::Decided(vec![Serve::Unhealthy, Serve::Healthy]), true))].into(),
        [("b", (up(2), true)), ("c", (Pool::Loading(1), true))].into(),
        [("a", (up(0), false)), ("b", (up(3), true)), ("c", (up(1), true))].into(),
    ];
    let mut published = Worlds::default();
    worlds.iter().map(|world| published.publish(world)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::xds::wire::RpcStatus;

    /// Pieces that a config is made of, so that random text gets past the first character.
    const PIECES: [&str; 24] = [
        "clusters",
        "listeners",
        "instances",
        "checks",
        "readiness",
        "http",
        "path",
        "address",
        "a",
        "b",
        ":",
        ": ",
        "\n",
        "\n  ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "\"",
        "- ",
        "5s",
        "10.0.0.1:80",
    ];

    /// Pieces that a completion's stream is made of.
    const CHUNKS: [&str; 14] = [
        "data: ",
        "data:",
        ": ping",
        "event: error",
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "[DONE]",
        r#"{"id":"a","choices":[{"text":"x","finish_reason":null}]}"#,
        r#"{"id":"b","choices":[{"delta":{"content":"é"},"finish_reason":"stop"}]}"#,
        r#"{"error":{"message":"died"}}"#,
        "{\"choices\":[",
        "\u{feff}",
    ];

    /// A step of [`xds_stream`] that can be decoded.
    fn step() -> impl Strategy<Value = Vec<u8>> {
        let names = vec("[a-d*]{0,2}", 0..4);
        (0u8..3, 0usize..5, names, "[0-9]{0,2}", any::<bool>(), any::<bool>()).prop_map(
            |(step, kind, names, response_nonce, nack, holds)| {
                let type_url = "t".repeat(kind);
                let error_detail = nack.then(|| RpcStatus { code: 13, message: "no".into() });
                let mut bytes = vec![step];
                let (add, drop) = names.split_at(names.len() / 2);
                let held = names.iter().filter(|_| holds).map(|n| (n.clone(), "1".to_owned()));
                match step {
                    0 => {}
                    1 => bytes.extend(
                        DeltaRequest {
                            type_url,
                            resource_names_subscribe: add.to_vec(),
                            resource_names_unsubscribe: drop.to_vec(),
                            initial_resource_versions: held.collect(),
                            response_nonce,
                            error_detail,
                            ..Default::default()
                        }
                        .encode_length_delimited_to_vec(),
                    ),
                    _ => bytes.extend(
                        SotwRequest {
                            type_url,
                            resource_names: names,
                            response_nonce,
                            error_detail,
                            ..Default::default()
                        }
                        .encode_length_delimited_to_vec(),
                    ),
                }
                bytes
            },
        )
    }

    proptest! {
        #[test]
        fn no_bytes_hurt_the_config_reader(bytes in vec(any::<u8>(), 0..200)) {
            config(&bytes);
        }

        #[test]
        fn no_text_hurts_the_config_reader(pieces in vec(0..PIECES.len(), 0..60)) {
            let text: String = pieces.into_iter().map(|at| PIECES[at]).collect();
            config(text.as_bytes());
        }

        #[test]
        fn no_stream_hurts_the_reader_of_completions(cut: u8, pieces in vec(0..CHUNKS.len(), 0..40)) {
            let text: String = pieces.into_iter().map(|at| CHUNKS[at]).collect();
            completion_stream(&[&[cut], text.as_bytes()].concat());
        }

        #[test]
        fn no_bytes_hurt_a_stream(bytes in vec(any::<u8>(), 0..200)) {
            xds_stream(&bytes);
        }

        #[test]
        fn no_requests_hurt_a_stream(steps in vec(step(), 0..40), cut in 0usize..4) {
            let bytes = steps.concat();
            xds_stream(&bytes[..bytes.len().saturating_sub(cut)]);
        }
    }
}
