//! The four things that happen, one after another.

use std::time::Duration;

use tidegate::model::Serve;
use tokio::sync::watch;

use crate::fleet::Fleet;
use crate::load::Account;
use crate::report::{Moment, Phase, count};
use crate::screen::Who;

/// How long users go on before the first event, and after each has been dealt with.
const AFTER: Duration = Duration::from_secs(2);
/// How long the added instance loads.
const LOADS_FOR: Duration = Duration::from_secs(3);

/// Plays all of them.
pub async fn play(fleet: &mut Fleet, users: &watch::Receiver<Account>) -> anyhow::Result<Vec<Phase>> {
    tokio::time::sleep(AFTER).await;
    Ok(vec![
        added(fleet, users).await?,
        hung(fleet, users).await?,
        drained(fleet, users).await?,
        killed(fleet, users).await?,
    ])
}

async fn added(fleet: &mut Fleet, users: &watch::Receiver<Account>) -> anyhow::Result<Phase> {
    fleet.screen.phase("added").await;
    let mut engine = fleet.kit.place().await?;
    let (instance, from) = (engine.address(), fleet.moment());
    fleet.register("four", instance)?;
    let how = fleet.kit.while_loading();
    fleet.screen.say(Who::Event, format!("`four` is added; it loads for 3 s, {how}")).await;
    let loads = async {
        tokio::time::sleep(LOADS_FOR).await;
        engine.come_up().await
    };
    let (known, up) = tokio::join!(fleet.known("four", Serve::Healthy), loads);
    up?;
    fleet.engines.insert("four", engine);
    end("added", fleet, users, instance, from, known?).await
}

async fn hung(fleet: &mut Fleet, users: &watch::Receiver<Account>) -> anyhow::Result<Phase> {
    fleet.screen.phase("hung").await;
    let engine = fleet.take("two")?;
    let (instance, from) = (engine.address(), fleet.moment());
    engine.hang()?;
    fleet.engines.insert("two", engine);
    fleet.screen.say(Who::Event, "`two` hangs: it takes connections and never answers").await;
    let known = fleet.known("two", Serve::Unhealthy).await?;
    end("hung", fleet, users, instance, from, known).await
}

async fn drained(fleet: &mut Fleet, users: &watch::Receiver<Account>) -> anyhow::Result<Phase> {
    fleet.screen.phase("drained").await;
    let engine = fleet.take("three")?;
    let (instance, from) = (engine.address(), fleet.moment());
    fleet.screen.say(Who::Event, "`three` is to be stopped: tidegate drain demo/three --wait").await;
    fleet.drain("three").await?;
    let known = fleet.known("three", Serve::Draining).await?;
    fleet.drained("three").await?;
    fleet.screen.say(Who::Event, "the last stream on `three` has ended, and it is stopped").await;
    engine.stop().await?;
    end("drained", fleet, users, instance, from, known).await
}

async fn killed(fleet: &mut Fleet, users: &watch::Receiver<Account>) -> anyhow::Result<Phase> {
    fleet.screen.phase("killed").await;
    let engine = fleet.take("one")?;
    let (instance, from) = (engine.address(), fleet.moment());
    engine.kill()?;
    fleet.screen.say(Who::Event, "`one` is killed; `four` is left").await;
    let known = fleet.known("one", Serve::Unhealthy).await?;
    end("killed", fleet, users, instance, from, known).await
}

/// Lets users go on for a while, and sums up.
async fn end(
    name: &'static str,
    fleet: &Fleet,
    users: &watch::Receiver<Account>,
    instance: std::net::SocketAddr,
    from: Moment,
    (seen, acked): (tidegate::model::MonoTime, tidegate::model::MonoTime),
) -> anyhow::Result<Phase> {
    tokio::time::sleep(AFTER).await;
    let to = fleet.moment();
    let account = users.borrow().clone();
    let (ok, failed, _) = count(&account.ended, from.at, to.at);
    let waiting = account.started.saturating_sub(account.ended.len());
    let text = format!("phase `{name}`: {ok} requests ok, {failed} failed so far, {waiting} under way\n");
    fleet.screen.say_at(to.at, Who::Users, text).await;
    Ok(Phase { name, instance, from, to, seen, acked })
}
