//! One client and the server: doors, large requests, slow readers, pings.

use prost::Message;
use tidegate::model::Serve;
use tidegate::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use tidegate::pb::envoy::service::discovery::v3::DiscoveryRequest;
use tidegate::pb::envoy::service::listener::v3::listener_discovery_service_client::ListenerDiscoveryServiceClient;
use tidegate::testing::eventually::eventually;
use tidegate::testing::sim_envoy::{Asks, Door, Kind, Machine, SimEnvoy, SimOptions, Wire};
use tidegate::testing::world::{Pool, World};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::BOTH;
use super::bare::{BareServer, Heard, RawClient, question};

fn up(count: usize) -> Pool {
    Pool::Decided(vec![Serve::Healthy; count])
}

fn endpoints(heard: &Heard) -> usize {
    let [one] = &heard.resources[..] else { panic!("{heard:?}") };
    let assignment = ClusterLoadAssignment::decode(&*one.value).unwrap();
    assignment.endpoints.iter().map(|locality| locality.lb_endpoints.len()).sum()
}

#[tokio::test]
async fn every_way_to_ask_is_answered_and_one_that_is_not_served_is_told_so() {
    // Case 80.
    let mut server = BareServer::start().await;
    server.publish(&[("llm", (up(2), true))].into());
    let mut sims = Vec::new();
    for wire in BOTH {
        let clusters_alone = Asks { endpoints: false, ..Asks::clusters() };
        for (door, asks) in [
            (Door::Ads, Asks::everything()),
            (Door::Cds, clusters_alone),
            (Door::Eds, Asks::assignments(&["llm"])),
        ] {
            let options = SimOptions { door, asks, ..SimOptions::new(server.address, wire) };
            sims.push((door, SimEnvoy::start(options)));
        }
    }
    for (door, sim) in &sims {
        let answered = |m: &Machine| {
            let clusters = *door == Door::Eds || m.clusters().contains("llm");
            let endpoints = *door == Door::Cds || m.assignment("llm").is_some_and(|all| all.len() == 2);
            if clusters && endpoints { Ok(()) } else { Err(format!("{:?}", m.clusters())) }
        };
        sim.wait_until(&format!("an answer at {door:?}"), answered).await.unwrap();
    }
    eventually("each is on record, with what it has acknowledged", async || {
        let clients = server.clients.list();
        let mut methods: Vec<_> =
            clients.values().filter(|c| c.kinds.values().any(|k| k.acks > 0)).map(|c| c.method).collect();
        methods.sort_unstable();
        let all = [
            "DeltaAggregatedResources",
            "DeltaClusters",
            "DeltaEndpoints",
            "StreamAggregatedResources",
            "StreamClusters",
            "StreamEndpoints",
        ];
        if methods == all { Ok(()) } else { Err(format!("{methods:?}")) }
    })
    .await
    .unwrap();

    let mut listeners =
        ListenerDiscoveryServiceClient::connect(format!("http://{}", server.address)).await.unwrap();
    let none = tokio_stream::empty::<DiscoveryRequest>();
    let refused = listeners.stream_listeners(none).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented, "{refused}");
}

#[tokio::test]
async fn a_client_that_comes_back_with_a_hundred_thousand_names_is_heard() {
    // Case 82: more than the 4 MiB at which gRPC servers stop reading unless told otherwise.
    let name = |n| format!("a-cluster-whose-name-is-as-long-as-names-are-{n:06}");
    let mut names: Vec<String> = (0..99_999).map(name).collect();
    assert!(names.iter().map(String::len).sum::<usize>() > 4 * 1024 * 1024);
    let mut server = BareServer::start().await;
    server.publish(&[("llm", (up(1), false))].into());
    let mut client = RawClient::connect(server.address, Wire::Delta).await;
    client.come_back(Kind::Cluster, &names).await;
    let first = client.read().await;
    assert_eq!((first.kind, first.resources.len()), (Kind::Cluster, 1));
    client.ask(Kind::Cluster, &[], &first.nonce).await;
    assert_eq!(client.read().await.removed, names);

    names.push("llm".to_owned());
    let mut client = RawClient::connect(server.address, Wire::Sotw).await;
    client.come_back(Kind::Endpoint, &names).await;
    assert_eq!(endpoints(&client.read().await), 1);
}

#[tokio::test]
async fn a_client_that_sleeps_through_five_hundred_changes_has_the_newest_after_two_messages() {
    // Case 94.
    const NEWEST: usize = 9;
    for wire in BOTH {
        let mut server = BareServer::start().await;
        let world =
            |count: usize| -> World { [("llm", (up(count), false)), ("other", (up(1), false))].into() };
        server.publish(&world(1));
        let mut client = RawClient::connect(server.address, wire).await;
        client.ask(Kind::Endpoint, &["llm"], "").await;
        let first = client.read().await;
        assert_eq!(endpoints(&first), 1);
        client.ask(Kind::Endpoint, &["llm"], &first.nonce).await;
        for round in 0..500 {
            server.publish(&world(1 + round % 7));
            tokio::task::yield_now().await;
        }
        server.publish(&world(NEWEST));
        let mut heard = client.read().await;
        if endpoints(&heard) != NEWEST {
            client.ask(Kind::Endpoint, &["llm"], &heard.nonce).await;
            heard = client.read().await;
        }
        assert_eq!(endpoints(&heard), NEWEST);
        let said = server.metric("tidegate_xds_responses_total{type=\"eds\"}");
        assert!((2.0..=3.0).contains(&said), "{said}");
        client.ask(Kind::Endpoint, &["llm"], &heard.nonce).await;
        // Nothing else was waiting behind it: the next message answers the next question.
        client.ask(Kind::Cluster, &[], "").await;
        assert_eq!(client.read().await.kind, Kind::Cluster);
    }
}

#[tokio::test]
async fn a_thousand_pings_in_a_row_are_answered_and_cost_no_connection() {
    // Case 88: gRPC's servers count pings, and hang up on whoever sends more than they like.
    let mut server = BareServer::start().await;
    server.publish(&[("llm", (up(1), false))].into());
    let socket = TcpStream::connect(server.address).await.unwrap();
    let (mut requests, mut connection) = h2::client::handshake(socket).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    for _ in 0..500 {
        pings.ping(h2::Ping::opaque()).await.unwrap();
    }
    // Without a stream so far; now with one.
    let (request, asks) = question(server.address);
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    let answer = answer.await.unwrap();
    for _ in 0..500 {
        pings.ping(h2::Ping::opaque()).await.unwrap();
    }
    body.send_data(asks, false).unwrap();
    let mut stream = answer.into_body();
    assert!(!stream.data().await.unwrap().unwrap().is_empty(), "the stream is as good as ever");
    assert!(tasks.try_join_next().is_none(), "the connection goes on");
}
