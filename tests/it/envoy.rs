//! The real Envoy is there, runs, and gives an account of its traffic.

use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess, Signal, access_log};
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;

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
