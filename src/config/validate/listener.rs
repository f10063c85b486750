//! Listeners and their routes.
//!
//! Pure: no I/O. Called by [`super::validate`].

use std::collections::BTreeMap;
use std::sync::Arc;

use http::uri::PathAndQuery;

use super::super::defaults::{IDLE_TIMEOUT, NUM_RETRIES, ROUTE_TIMEOUT};
use super::super::path::Cursor;
use super::super::raw::{RawAddress, RawConfig, RawListener, RawRoute};
use super::super::suggest::did_you_mean;
use super::super::{Listener, Route};
use super::address::{self, Ports};
use super::cluster::bad_name;
use super::report::{Invalid, Report};
use crate::model::{Address, ClusterName, ListenerName};

/// `listeners` of the file.
pub(super) fn listeners(
    report: &mut Report<'_>,
    root: &Cursor<'_>,
    raw: &RawConfig,
) -> Result<BTreeMap<ListenerName, Arc<Listener>>, Invalid> {
    let at = root.key("listeners");
    let mut listeners = BTreeMap::new();
    let mut used: BTreeMap<Address, &str> = BTreeMap::new();
    let mut invalid = false;
    for (name, listener) in raw.listeners.iter().flatten() {
        let at = at.key(name);
        let id = ListenerName::new(name).map_err(|error| bad_name(report, &at, &error));
        let address = listener_address(report, &at, listener);
        if let Ok(address) = address
            && let Some(other) = used.insert(address, name)
        {
            report.fail(
                &at.key("address"),
                format!("`{name}` and `{other}` have one address, {address}"),
                "give each listener its own port".into(),
            );
            invalid = true;
        }
        let routes = routes(report, root, &at, raw, listener);
        match (id, address, routes) {
            (Ok(id), Ok(address), Ok(routes)) => {
                listeners.insert(id, Arc::new(Listener { address, routes }));
            }
            (Err(Invalid), ..) | (_, Err(Invalid), _) | (.., Err(Invalid)) => invalid = true,
        }
    }
    if invalid { Err(Invalid) } else { Ok(listeners) }
}

fn listener_address(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawListener) -> Result<Address, Invalid> {
    let Some(RawAddress(text)) = &raw.address else {
        return Err(report.missing(
            at,
            "address",
            "write where Envoy listens, such as `address: 0.0.0.0:8080`",
        ));
    };
    address::parse(text, Ports::Fixed)
        .map(Address::new)
        .map_err(|problem| report.fail(&at.key("address"), problem.message, problem.help))
}

fn routes(
    report: &mut Report<'_>,
    root: &Cursor<'_>,
    at: &Cursor<'_>,
    raw: &RawConfig,
    listener: &RawListener,
) -> Result<Vec<Route>, Invalid> {
    const WRITE: &str = "write where requests go, such as `routes: [{ prefix: /, cluster: NAME }]`";
    let Some(given) = &listener.routes else { return Err(report.missing(at, "routes", WRITE)) };
    let at = at.key("routes");
    if given.is_empty() {
        return Err(report.fail(
            &at,
            "`routes` is empty: every request would be answered 404".into(),
            WRITE.into(),
        ));
    }
    let mut routes: Vec<Route> = Vec::with_capacity(given.len());
    let mut invalid = false;
    for (index, given) in given.iter().enumerate() {
        // What is absent was no map, and reported.
        let Some(given) = given else { continue };
        let at = at.index(index);
        let Ok(route) = route(report, root, &at, raw, given) else {
            invalid = true;
            continue;
        };
        if let Some(earlier) = routes.iter().find(|earlier| route.prefix.starts_with(&*earlier.prefix)) {
            report.fail(
                &at.key("prefix"),
                format!("the earlier route `{}` takes every request of `{}`", earlier.prefix, route.prefix),
                "routes are tried in order: put the longer prefix first".into(),
            );
            invalid = true;
        }
        routes.push(route);
    }
    if invalid { Err(Invalid) } else { Ok(routes) }
}

fn route(
    report: &mut Report<'_>,
    root: &Cursor<'_>,
    at: &Cursor<'_>,
    raw: &RawConfig,
    given: &RawRoute,
) -> Result<Route, Invalid> {
    let prefix = prefix(report, at, given.prefix.as_ref());
    let cluster = target(report, root, at, raw, given.cluster.as_ref());
    let timeout = report.duration(&at.key("timeout"), given.timeout.as_ref(), &ROUTE_TIMEOUT);
    let idle = report.duration(&at.key("idle_timeout"), given.idle_timeout.as_ref(), &IDLE_TIMEOUT);
    let retries = report.number(&at.key("num_retries"), given.num_retries, &NUM_RETRIES);
    Ok(Route {
        prefix: prefix?,
        cluster: cluster?,
        timeout: timeout?,
        idle_timeout: idle?,
        num_retries: retries?,
    })
}

fn prefix(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&String>) -> Result<Arc<str>, Invalid> {
    let Some(text) = raw else {
        return Err(report.missing(at, "prefix", "write a path prefix; `prefix: /` takes every request"));
    };
    let at = at.key("prefix");
    if !text.starts_with('/') {
        let help = format!("write `/{}`", text.escape_debug());
        return Err(report.fail(&at, "`prefix` does not begin with `/`".into(), help));
    }
    match text.parse::<PathAndQuery>() {
        Ok(parsed) if parsed.as_str() == text && parsed.query().is_none() => Ok(Arc::from(text.as_str())),
        Ok(_) | Err(_) => Err(report.fail(
            &at,
            "`prefix` is not the beginning of a path".into(),
            "leave out `?` and `#` with what follows, and percent-encode other characters".into(),
        )),
    }
}

/// The cluster that a route leads to.
fn target(
    report: &mut Report<'_>,
    root: &Cursor<'_>,
    at: &Cursor<'_>,
    raw: &RawConfig,
    given: Option<&String>,
) -> Result<ClusterName, Invalid> {
    let Some(name) = given else {
        return Err(report.missing(at, "cluster", "write the name of the cluster the route leads to"));
    };
    let clusters = root.key("clusters");
    if let Some(known) = &raw.clusters
        && known.contains_key(name)
    {
        // The name itself is checked, and reported, where the cluster is.
        return ClusterName::new(name).map_err(|_| Invalid);
    }
    if report.is_lost(&clusters.key(name)) {
        return Err(Invalid);
    }
    let known = || raw.clusters.iter().flat_map(BTreeMap::keys).map(String::as_str);
    let help = match did_you_mean(name, known()) {
        Some(question) => question,
        None if known().next().is_none() => format!("add `{}` under `clusters`", name.escape_debug()),
        None => {
            let some: Vec<&str> = known().take(5).collect();
            let more = if known().nth(5).is_some() { ", …" } else { "" };
            format!("the clusters are: {}{more}", some.join(", "))
        }
    };
    let message = format!("there is no cluster `{}`", name.escape_debug());
    Err(report.fail(&at.key("cluster"), message, help))
}
