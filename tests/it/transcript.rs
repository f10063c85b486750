//! The simulated Envoy speaks like the real one: one script, two clients, one transcript.

use std::time::Duration;

use tidegate::pb::envoy::config::core::v3::HealthStatus;
use tidegate::pb::google::protobuf::Any;
use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess};
use tidegate::testing::scripted_ads::{Say, ScriptedAds};
use tidegate::testing::sim_envoy::{Asks, Kind, SimEnvoy, SimOptions, Wire};
use tidegate::testing::xds_samples as sample;

/// One step: what is said, and how many messages the client answers with.
struct Step {
    say: Say,
    answers: usize,
}

struct Script {
    wire: Wire,
    steps: Vec<Step>,
}

impl Script {
    fn say(&mut self, answers: usize, kind: Kind, version: &str, resources: &[(String, Any)]) {
        let say =
            Say { kind, version: version.to_owned(), resources: resources.to_vec(), removed: Vec::new() };
        self.steps.push(Step { say, answers });
    }

    /// Delta names what goes; SotW sends what stays (for CDS and LDS: all of it).
    fn remove(
        &mut self,
        answers: usize,
        kind: Kind,
        version: &str,
        removed: &[&str],
        staying: &[(String, Any)],
    ) {
        let removed = removed.iter().map(|name| (*name).to_owned()).collect();
        let version = version.to_owned();
        let say = match self.wire {
            Wire::Delta => Say { kind, version, resources: Vec::new(), removed },
            Wire::Sotw => Say { kind, version, resources: staying.to_vec(), removed: Vec::new() },
        };
        self.steps.push(Step { say, answers });
    }
}

fn host(weight: u32, health: HealthStatus) -> Vec<(std::net::SocketAddr, HealthStatus, u32)> {
    vec![("127.0.0.1:9".parse().unwrap(), health, weight)]
}

/// A life: start, refusal, a cluster changed and one added, one removed, a listener that changes its routes.
fn life(wire: Wire) -> Script {
    let cluster = sample::cluster;
    let eds = |name: &str, health| sample::assignment(name, &host(1, health));
    let any_port = "127.0.0.1:0".parse().unwrap();
    let mut script = Script { wire, steps: Vec::new() };
    script.say(2, Kind::Cluster, "1", &[cluster("a", 1), cluster("b", 1)]);
    script.say(1, Kind::Endpoint, "1", &[eds("a", HealthStatus::Healthy)]);
    script.say(2, Kind::Endpoint, "2", &[eds("b", HealthStatus::Healthy)]);
    script.say(2, Kind::Listener, "1", &[sample::listener("l", any_port, "r")]);
    script.say(1, Kind::Route, "1", &[sample::routes("r", "a")]);
    let refused = sample::assignment("a", &host(0, HealthStatus::Healthy));
    script.say(1, Kind::Endpoint, "3", &[refused]);
    script.say(1, Kind::Endpoint, "4", &[eds("a", HealthStatus::Draining)]);
    script.say(1, Kind::Cluster, "2", &[cluster("a", 2), cluster("b", 1), cluster("c", 1)]);
    script.say(1, Kind::Endpoint, "4", &[eds("a", HealthStatus::Draining)]);
    script.say(2, Kind::Endpoint, "5", &[eds("c", HealthStatus::Healthy)]);
    script.remove(2, Kind::Cluster, "3", &["b"], &[cluster("a", 2), cluster("c", 1)]);
    script.remove(1, Kind::Endpoint, "6", &["c"], &[eds("a", HealthStatus::Draining)]);
    script.say(1, Kind::Route, "2", &[sample::routes("r", "c")]);
    script.say(2, Kind::Listener, "2", &[sample::listener("l", any_port, "r2")]);
    script.say(1, Kind::Route, "3", &[sample::routes("r2", "c")]);
    script
}

/// What comes after the line was cut and the client is back with four requests.
fn after_reconnect(wire: Wire) -> Script {
    let cluster = sample::cluster;
    let mut script = Script { wire, steps: Vec::new() };
    script.say(1, Kind::Cluster, "3", &[cluster("a", 2), cluster("c", 1)]);
    script.remove(2, Kind::Cluster, "9", &["a", "c"], &[]);
    script.remove(1, Kind::Listener, "9", &["l"], &[]);
    script
}

async fn play(ads: &ScriptedAds, script: Script) {
    for step in script.steps {
        let expected = ads.heard().len() + step.answers;
        ads.say(step.say).await.unwrap();
        ads.wait_heard(expected).await.unwrap();
    }
}

async fn whole_play(ads: &ScriptedAds, wire: Wire) -> Vec<String> {
    ads.wait_heard(1).await.unwrap();
    play(ads, life(wire)).await;
    let expected = ads.heard().len() + 4;
    ads.hang_up();
    ads.wait_heard(expected).await.unwrap();
    play(ads, after_reconnect(wire)).await;
    ads.transcript().iter().map(ToString::to_string).collect()
}

async fn real(wire: Wire) -> Vec<String> {
    let ads = ScriptedAds::start().await.unwrap();
    let bootstrap =
        Bootstrap { xds: Some(ads.address()), wire, cds: true, lds: true, ..Bootstrap::default() };
    let options = EnvoyOptions { wait_live: false, ..EnvoyOptions::default() };
    let _envoy = EnvoyProcess::start(&bootstrap.yaml(), &options).await.unwrap();
    whole_play(&ads, wire).await
}

async fn simulated(wire: Wire) -> Vec<String> {
    let ads = ScriptedAds::start().await.unwrap();
    // The script says CDS again after the reconnect, although nothing changed: no server should.
    let options = SimOptions {
        reconnect_after: Duration::from_millis(1),
        forgiving: true,
        ..SimOptions::new(ads.address(), wire)
    };
    let _envoy = SimEnvoy::start(options);
    whole_play(&ads, wire).await
}

/// An Envoy whose clusters are static and only whose endpoints come from the control plane.
async fn endpoints_alone(ads: &ScriptedAds, wire: Wire) -> Vec<String> {
    let eds = |name: &str, health| sample::assignment(name, &host(1, health));
    ads.wait_heard(1).await.unwrap();
    let mut script = Script { wire, steps: Vec::new() };
    script.say(1, Kind::Endpoint, "1", &[eds("a", HealthStatus::Healthy)]);
    script.say(1, Kind::Endpoint, "2", &[eds("b", HealthStatus::Healthy)]);
    script.say(1, Kind::Endpoint, "3", &[eds("b", HealthStatus::Draining)]);
    play(ads, script).await;
    ads.hang_up();
    ads.wait_heard(5).await.unwrap();
    ads.transcript().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_simulated_envoy_asks_for_endpoints_alone_like_the_real_one() {
    for wire in [Wire::Delta, Wire::Sotw] {
        let real = async {
            let ads = ScriptedAds::start().await.unwrap();
            let eds_clusters = vec!["a".to_owned(), "b".to_owned()];
            let bootstrap =
                Bootstrap { xds: Some(ads.address()), wire, eds_clusters, ..Bootstrap::default() };
            let options = EnvoyOptions { wait_live: false, ..EnvoyOptions::default() };
            let _envoy = EnvoyProcess::start(&bootstrap.yaml(), &options).await.unwrap();
            endpoints_alone(&ads, wire).await
        };
        let simulated = async {
            let ads = ScriptedAds::start().await.unwrap();
            let asks = Asks::assignments(&["a", "b"]);
            let _envoy = SimEnvoy::start(SimOptions { asks, ..SimOptions::new(ads.address(), wire) });
            endpoints_alone(&ads, wire).await
        };
        let (real, simulated) = tokio::join!(real, simulated);
        assert_eq!(real.join("\n"), simulated.join("\n"));
    }
}

#[tokio::test]
async fn the_simulated_envoy_speaks_delta_like_the_real_one() {
    let (real, simulated) = tokio::join!(real(Wire::Delta), simulated(Wire::Delta));
    assert_eq!(real.join("\n"), simulated.join("\n"));
}

#[tokio::test]
async fn the_simulated_envoy_speaks_sotw_like_the_real_one() {
    let (real, simulated) = tokio::join!(real(Wire::Sotw), simulated(Wire::Sotw));
    assert_eq!(real.join("\n"), simulated.join("\n"));
}
