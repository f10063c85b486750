//! The simulated Envoy on a real line: gates, cuts and reconnects.

use tidegate::pb::envoy::config::core::v3::HealthStatus;
use tidegate::testing::scripted_ads::{Say, ScriptedAds};
use tidegate::testing::sim_envoy::{Asks, Door, Kind, SimEnvoy, SimOptions, Wire};
use tidegate::testing::xds_samples::{assignment, cluster};

fn say(kind: Kind, version: &str, resource: (String, tidegate::pb::google::protobuf::Any)) -> Say {
    Say { kind, version: version.to_owned(), resources: vec![resource], removed: Vec::new() }
}

fn eds(health: HealthStatus) -> (String, tidegate::pb::google::protobuf::Any) {
    assignment("a", &[("127.0.0.1:9".parse().unwrap(), health, 100)])
}

async fn connected(wire: Wire) -> (ScriptedAds, SimEnvoy) {
    let ads = ScriptedAds::start().await.unwrap();
    let options = SimOptions { asks: Asks::clusters(), ..SimOptions::new(ads.address(), wire) };
    let envoy = SimEnvoy::start(options);
    ads.wait_heard(1).await.unwrap();
    ads.say(say(Kind::Cluster, "1", cluster("a", 1))).await.unwrap();
    ads.wait_heard(3).await.unwrap();
    ads.say(say(Kind::Endpoint, "1", eds(HealthStatus::Healthy))).await.unwrap();
    envoy.wait_version(Kind::Endpoint, "a", "1").await.unwrap();
    ads.wait_heard(4).await.unwrap();
    (ads, envoy)
}

#[tokio::test]
async fn held_answers_are_sent_when_the_gate_opens() {
    for wire in [Wire::Delta, Wire::Sotw] {
        let (ads, envoy) = connected(wire).await;
        envoy.hold_answers(true);
        ads.say(say(Kind::Endpoint, "2", eds(HealthStatus::Draining))).await.unwrap();
        envoy.wait_version(Kind::Endpoint, "a", "2").await.unwrap();
        assert_eq!(ads.heard().len(), 4, "applied, not acknowledged");
        envoy.hold_answers(false);
        ads.wait_heard(5).await.unwrap();
        assert!(ads.transcript().last().unwrap().is_ack());
    }
}

#[tokio::test]
async fn a_cut_line_keeps_the_world_and_comes_back_with_it() {
    for wire in [Wire::Delta, Wire::Sotw] {
        let (ads, envoy) = connected(wire).await;
        envoy.disconnect();
        envoy
            .wait_until("offline", |m| if m.is_connected() { Err("connected".to_owned()) } else { Ok(()) })
            .await
            .unwrap();
        assert!(envoy.look(|m| m.assignment("a").is_some()));
        envoy.connect();
        ads.wait_heard(6).await.unwrap();
        let heard = ads.heard();
        assert!(heard[4].starts_with("2 > CDS") && heard[4].ends_with("node"), "{heard:?}");
        assert!(heard[5].starts_with("2 > EDS names=a"), "{heard:?}");
    }
}

#[tokio::test]
async fn a_server_that_repeats_itself_fails_the_test() {
    let ads = ScriptedAds::start().await.unwrap();
    let options = SimOptions {
        asks: Asks::assignments(&["a"]),
        forgiving: true,
        ..SimOptions::new(ads.address(), Wire::Delta)
    };
    let envoy = SimEnvoy::start(options);
    ads.wait_heard(1).await.unwrap();
    for _ in 0..2 {
        ads.say(say(Kind::Endpoint, "1", eds(HealthStatus::Healthy))).await.unwrap();
    }
    let count = |n: usize| {
        move |m: &tidegate::testing::sim_envoy::Machine| {
            if m.violations().len() == n { Ok(()) } else { Err(format!("{:?}", m.violations())) }
        }
    };
    envoy.wait_until("the complaint", count(1)).await.unwrap();
}

#[tokio::test]
async fn a_closed_door_is_tried_again() {
    // The scripted server has no EDS service: every stream fails, none is counted as progress.
    let ads = ScriptedAds::start().await.unwrap();
    let options = SimOptions {
        asks: Asks::assignments(&["a"]),
        door: Door::Eds,
        ..SimOptions::new(ads.address(), Wire::Sotw)
    };
    let envoy = SimEnvoy::start(options);
    let tried = |m: &tidegate::testing::sim_envoy::Machine| {
        if m.streams() >= 3 { Ok(()) } else { Err(format!("{} streams", m.streams())) }
    };
    envoy.wait_until("three attempts", tried).await.unwrap();
    assert!(ads.heard().is_empty());
}
