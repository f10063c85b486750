//! The real Envoy is there, runs, and gives an account of its traffic.

use tidegate::clock::Clock;
use tidegate::pb::envoy::config::core::v3::HealthStatus;
use tidegate::testing::envoy::access_log::{self, Served};
use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess, Signal};
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;
use tidegate::testing::instance::FakeInstance;
use tidegate::testing::load::{Load, Sent, Traffic, shares};
use tidegate::testing::scripted_ads::{Say, ScriptedAds};
use tidegate::testing::sim_envoy::Kind;
use tidegate::testing::xds_samples;

#[tokio::test]
async fn a_real_envoy_serves_and_logs_when_it_started_each_request() {
    let envoy = EnvoyProcess::start(&Bootstrap::default().yaml(), &EnvoyOptions::default()).await.unwrap();
    let listener = envoy.listener("traffic").await.unwrap();
    let before = access_log::wall_micros();
    let direct = fetch::get(listener, "/direct").await.unwrap();
    assert_eq!((direct.status.as_u16(), direct.text().as_str()), (200, "direct"));
    let lost = fetch::get(listener, "/nowhere").await.unwrap();
    assert_eq!(lost.status.as_u16(), 503);
    let after = access_log::wall_micros();

    let log = envoy.scratch().join("access.log");
    let served = eventually("both requests are logged", async || {
        let served = access_log::read(&log).map_err(|e| format!("{e:#}"))?;
        if served.len() == 2 { Ok(served) } else { Err(format!("{served:?}")) }
    });
    let served = served.await.unwrap();
    let seen: Vec<_> =
        served.iter().map(|s| (s.status, s.path.as_str(), s.flags.as_str(), s.upstream)).collect();
    assert_eq!(seen, [(200, "/direct", "", None), (503, "/nowhere", "NC", None)]);
    for request in &served {
        assert!((before..=after).contains(&request.start_micros), "{before} {request:?} {after}");
    }
    assert_eq!(envoy.admin().stat("http.traffic.downstream_rq_2xx").await.unwrap(), Some(1));
}

#[tokio::test]
async fn an_envoy_that_cannot_start_says_why() {
    let error = EnvoyProcess::start("nonsense: 1", &EnvoyOptions::default()).await.unwrap_err();
    assert!(format!("{error:#}").contains("nonsense"), "{error:#}");
}

#[tokio::test]
async fn an_envoy_ends_when_told_to_even_after_a_freeze() {
    let envoy = EnvoyProcess::start(&Bootstrap::default().yaml(), &EnvoyOptions::default()).await.unwrap();
    envoy.signal(Signal::Stop).unwrap();
    envoy.signal(Signal::Cont).unwrap();
    assert!(envoy.terminate().await.unwrap().success());
}

#[tokio::test]
async fn what_eds_says_moves_real_traffic() {
    let (a, b) = (FakeInstance::start().await.unwrap(), FakeInstance::start().await.unwrap());
    let ads = ScriptedAds::start().await.unwrap();
    let eds_clusters = vec!["c".to_owned()];
    let bootstrap = Bootstrap { xds: Some(ads.address()), eds_clusters, ..Bootstrap::default() };
    let push = async |version: &str, health_of_b| {
        let hosts = [(a.address(), HealthStatus::Healthy, 100), (b.address(), health_of_b, 100)];
        let resources = vec![xds_samples::assignment("c", &hosts)];
        let say = Say { kind: Kind::Endpoint, version: version.to_owned(), resources, removed: Vec::new() };
        let expected = ads.heard().len() + 1;
        ads.say(say).await.unwrap();
        ads.wait_heard(expected).await.unwrap();
        access_log::wall_micros()
    };
    let options = EnvoyOptions { wait_live: false, ..EnvoyOptions::default() };
    let mut envoy = EnvoyProcess::start(&bootstrap.yaml(), &options).await.unwrap();
    ads.wait_heard(1).await.unwrap();
    push("1", HealthStatus::Healthy).await;
    envoy.wait_live().await.unwrap();

    let load = Load::new(envoy.listener("traffic").await.unwrap()).cluster("c");
    let mut traffic = Traffic::start(load, Clock::start());
    let served_by = |name: &str, sent: &[Sent]| shares(sent).get(name).copied().unwrap_or(0);
    traffic.wait_until(|sent| served_by(b.name(), sent) >= 3).await.unwrap();
    let acknowledged = push("2", HealthStatus::Draining).await;
    let seen = traffic.so_far().len();
    traffic.wait_until(|sent| sent.len() >= seen + 40).await.unwrap();
    let sent = traffic.stop().await;
    assert!(sent.iter().all(Sent::is_ok), "{:?}", sent.iter().find(|s| !s.is_ok()));

    let log = envoy.scratch().join("access.log");
    let served = eventually("all requests are logged", async || {
        let served = access_log::read(&log).map_err(|e| format!("{e:#}"))?;
        if served.len() == sent.len() {
            Ok(served)
        } else {
            Err(format!("{} of {}", served.len(), sent.len()))
        }
    });
    let served = served.await.unwrap();
    let late = |r: &&Served| r.upstream == Some(b.address()) && r.start_micros > acknowledged;
    assert_eq!(served.iter().filter(late).count(), 0);
    let hosts = &envoy.admin().clusters().await.unwrap()["c"];
    assert_eq!(hosts[&b.address()].eds_health, "DRAINING");
}
