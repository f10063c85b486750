//! Clients that end their stream over something instead of refusing it.

use tidegate::model::Serve;
use tidegate::testing::eventually::eventually;
use tidegate::testing::sim_envoy::{Kind, Wire};
use tidegate::testing::world::{Pool, World};

use super::BOTH;
use super::bare::{BareServer, Heard, RawClient};

const NODE: &str = "walks-out";

/// `good` and `poison`, with so many endpoints.
fn world(good: usize, poison: usize) -> World {
    let up = |n| Pool::Decided(vec![Serve::Healthy; n]);
    [("good", (up(good), false)), ("poison", (up(poison), false))].into()
}

fn name(heard: &Heard) -> &'static str {
    let [resource] = &heard.resources[..] else { panic!("one resource per message: {heard:?}") };
    let holds = |name: &str| resource.value.windows(name.len()).any(|window| window == name.as_bytes());
    if holds("poison") { "poison" } else { "good" }
}

/// Connects, asks for both, and takes `good`.
async fn come(server: &BareServer, wire: Wire) -> RawClient {
    let acks = || server.metric("tidegate_xds_acks_total{type=\"eds\"}");
    let before = acks();
    let mut client = RawClient::connect_as(NODE, server.address, wire).await;
    client.ask(Kind::Endpoint, &["good", "poison"], "").await;
    let first = client.read().await;
    assert_eq!(name(&first), "good", "in order of their names");
    client.ask(Kind::Endpoint, &["good", "poison"], &first.nonce).await;
    let heard = async || if acks() > before { Ok(()) } else { Err("not acknowledged".to_owned()) };
    eventually("the server has heard it", heard).await.unwrap();
    client
}

async fn gone(server: &BareServer) {
    let empty = async || match server.clients.list().len() {
        0 => Ok(()),
        n => Err(format!("{n} streams")),
    };
    eventually("the stream is gone", empty).await.unwrap();
}

/// What the server says that the client refuses, with its reason.
fn refused(server: &BareServer) -> Vec<(String, String)> {
    let clients = server.clients.list();
    let kinds = clients.values().flat_map(|client| client.kinds.values());
    let refused = kinds.flat_map(|kind| &kind.refused);
    refused.map(|(name, why)| (name.to_string(), why.message.to_string())).collect()
}

#[tokio::test]
async fn what_a_client_walks_out_over_is_held_back_and_nothing_else_is() {
    // Case 86. Eight times in a row: it is held back for a minute then, which no machine is too slow to see.
    const TIMES: u32 = 8;
    for wire in BOTH {
        let mut server = BareServer::start().await;
        let strikes = |server: &BareServer| server.metric("tidegate_xds_strikes_total{type=\"eds\"}");
        let mut version = 1;
        server.publish(&world(1, version));
        // (If it takes the server two seconds to notice that the client left, that counts for nothing.)
        for _ in 0..10 * TIMES {
            let mut client = come(&server, wire).await;
            assert_eq!(name(&client.read().await), "poison", "each version is tried once");
            drop(client);
            gone(&server).await;
            if strikes(&server) >= f64::from(TIMES) {
                break;
            }
            // The same once more, which is no sign yet; then another each time.
            if strikes(&server) >= 2.0 {
                version += 1;
                server.publish(&world(1, version));
            }
        }
        assert!(strikes(&server) >= f64::from(TIMES), "{wire:?}");

        let mut client = come(&server, wire).await;
        let said = refused(&server);
        let [(what, why)] = &said[..] else { panic!("{said:?}") };
        assert_eq!(what, "poison");
        assert!(why.contains("streams in a row ended right after poison was sent"), "{why}");
        server.publish(&world(2, version));
        let news = client.read().await;
        assert_eq!(name(&news), "good", "{wire:?}: it gets all else, and `poison` has not come before");
        client.ask(Kind::Endpoint, &["good", "poison"], &news.nonce).await;

        server.publish(&world(2, version + 1));
        let other = client.read().await;
        assert_eq!(name(&other), "poison", "another version");
        client.ask(Kind::Endpoint, &["good", "poison"], &other.nonce).await;
        let cleared = async || match refused(&server) {
            said if said.is_empty() => Ok(()),
            said => Err(format!("{said:?}")),
        };
        eventually("what it takes, it no longer refuses", cleared).await.unwrap();
        drop(client);
        gone(&server).await;
        let mut client = come(&server, wire).await;
        assert_eq!(name(&client.read().await), "poison", "{wire:?}: nothing is remembered");
    }
}
