//! What clients hold, in the words of CSDS (`envoy/service/status/v3/csds.proto`).
//!
//! Pure: no I/O. Contents are never included, only versions: who wants them asks the client itself.

use prost::Message as _;

use super::convert::Table;
use crate::pb::envoy::admin::v3::{ClientResourceStatus, UpdateFailureState};
use crate::pb::envoy::config::core::v3::{self as core, node::UserAgentVersionType};
use crate::pb::envoy::service::status::v3::client_config::GenericXdsConfig;
use crate::pb::envoy::service::status::v3::{
    ClientConfig, ClientStatusRequest, ClientStatusResponse, ConfigStatus,
};
use crate::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use crate::pb::envoy::r#type::matcher::v3::{NodeMatcher, StringMatcher};
use crate::xds::ClientStatus;
use crate::xds::stream::{Holding, Said, Standing};

/// Largest answer, in bytes. Ten thousand resources of one client take about two million.
pub(super) const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("{0} cannot be matched here; match a node by `node_id`: exact, prefix, suffix or contains")]
    Matcher(&'static str),
    #[error(
        "what these clients hold takes more than {MAX_ANSWER_BYTES} bytes to tell; name fewer of them with `node_matchers`"
    )]
    TooLarge,
}

/// The clients that a request is about.
pub(super) fn meant(request: &ClientStatusRequest, mut clients: Table) -> Result<Table, Refused> {
    let matchers = &request.node_matchers;
    is_meant(matchers, "")?; // whoever is connected
    clients.retain(|_, status| is_meant(matchers, &status.node) == Ok(true));
    Ok(clients)
}

/// An answer in the making.
#[derive(Debug, Default)]
pub(super) struct Answer {
    config: Vec<ClientConfig>,
    bytes: usize,
}

impl Answer {
    /// Tells what one more client holds.
    pub(super) fn tell(&mut self, status: &ClientStatus, holdings: &[Holding]) -> Result<(), Refused> {
        let of_client = client_config(status, holdings);
        self.bytes += of_client.encoded_len();
        if self.bytes > MAX_ANSWER_BYTES {
            return Err(Refused::TooLarge);
        }
        self.config.push(of_client);
        Ok(())
    }

    /// That is all.
    pub(super) fn end(self) -> ClientStatusResponse {
        ClientStatusResponse { config: self.config }
    }
}

/// By any of the matchers; without one, everybody is meant.
fn is_meant(matchers: &[NodeMatcher], node: &str) -> Result<bool, Refused> {
    let mut meant = matchers.is_empty();
    for matcher in matchers {
        if !matcher.node_metadatas.is_empty() {
            return Err(Refused::Matcher("node metadata"));
        }
        meant |= matcher.node_id.as_ref().map_or(Ok(true), |id| matches(id, node))?;
    }
    Ok(meant)
}

fn matches(matcher: &StringMatcher, text: &str) -> Result<bool, Refused> {
    let cased = |text: &str| if matcher.ignore_case { text.to_lowercase() } else { text.to_owned() };
    let text = cased(text);
    Ok(match &matcher.match_pattern {
        Some(MatchPattern::Exact(exact)) => text == cased(exact),
        Some(MatchPattern::Prefix(prefix)) => text.starts_with(&cased(prefix)),
        Some(MatchPattern::Suffix(suffix)) => text.ends_with(&cased(suffix)),
        Some(MatchPattern::Contains(part)) => text.contains(&cased(part)),
        Some(MatchPattern::SafeRegex(_)) => return Err(Refused::Matcher("a regular expression")),
        Some(MatchPattern::Custom(_)) | None => return Err(Refused::Matcher("such a pattern")),
    })
}

fn client_config(status: &ClientStatus, holdings: &[Holding]) -> ClientConfig {
    let node = core::Node {
        id: status.node.to_string(),
        user_agent_name: status.agent.to_string(),
        user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion(
            status.agent_version.to_string(),
        )),
        ..Default::default()
    };
    let generic_xds_configs = holdings.iter().map(|holding| generic(status, holding)).collect();
    ClientConfig { node: Some(node), generic_xds_configs, ..Default::default() }
}

fn generic(status: &ClientStatus, holding: &Holding) -> GenericXdsConfig {
    let has =
        if holding.held.is_some() { ClientResourceStatus::Acked } else { ClientResourceStatus::Requested };
    let (config_status, client_status) = match holding.standing() {
        Standing::Synced => (ConfigStatus::Synced, has),
        Standing::Pending if holding.sent.is_some() => (ConfigStatus::Stale, has),
        Standing::Pending | Standing::Withheld => (ConfigStatus::NotSent, has),
        Standing::Absent => (ConfigStatus::Synced, ClientResourceStatus::DoesNotExist),
        Standing::Refused => (ConfigStatus::Error, ClientResourceStatus::Nacked),
    };
    let of_kind = status.kinds.get(&holding.kind);
    let words = of_kind.and_then(|kind| kind.refused.get(&holding.name).or_else(|| kind.latest_rejection()));
    let error_state = holding.refused.as_ref().map(|refused| UpdateFailureState {
        details: words.map(|rejection| rejection.message.to_string()).unwrap_or_default(),
        version_info: match refused {
            Said::Version(version) => version.to_string(),
            Said::Removal => String::new(),
        },
        ..Default::default()
    });
    GenericXdsConfig {
        type_url: holding.kind.type_url().to_owned(),
        name: holding.name.to_string(),
        version_info: holding.held.as_ref().map(ToString::to_string).unwrap_or_default(),
        config_status: config_status.into(),
        client_status: client_status.into(),
        error_state,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::*;
    use crate::model::MonoTime;
    use crate::snapshot::Kind;
    use crate::xds::stream::Truth;
    use crate::xds::{KindStatus, Rejection};

    fn matcher(pattern: MatchPattern, ignore_case: bool) -> NodeMatcher {
        let node_id = Some(StringMatcher { match_pattern: Some(pattern), ignore_case });
        NodeMatcher { node_id, ..Default::default() }
    }

    #[test]
    fn nodes_are_meant_by_any_matcher_and_all_are_without_one() {
        use MatchPattern::{Contains, Exact, Prefix, Suffix};
        let is = |matchers: &[NodeMatcher]| is_meant(matchers, "edge-eu-7").unwrap();
        assert!(is(&[]));
        assert!(is(&[matcher(Exact("edge-eu-7".into()), false)]));
        assert!(
            !is(&[matcher(Exact("EDGE-eu-7".into()), false)])
                && is(&[matcher(Exact("EDGE-eu-7".into()), true)])
        );
        assert!(is(&[matcher(Prefix("edge-".into()), false)]) && !is(&[matcher(Prefix("eu".into()), false)]));
        assert!(is(&[matcher(Suffix("-7".into()), false)]) && !is(&[matcher(Suffix("edge".into()), false)]));
        assert!(is(&[matcher(Exact("other".into()), false), matcher(Contains("-eu-".into()), false)]));
        assert!(is(&[NodeMatcher::default()]), "nothing is asked of it");
    }

    #[test]
    fn a_request_that_cannot_be_matched_is_refused_whoever_is_connected() {
        let node_matchers = vec![matcher(MatchPattern::SafeRegex(Default::default()), false)];
        let request = ClientStatusRequest { node_matchers, ..Default::default() };
        assert_eq!(meant(&request, Table::new()), Err(Refused::Matcher("a regular expression")));
    }

    fn status() -> ClientStatus {
        let rejection = |message: &str| Rejection { message: message.into(), at: MonoTime::ZERO };
        let refused = [("c".into(), rejection("not this one"))].into();
        ClientStatus {
            node: "n".into(),
            agent: "envoy".into(),
            agent_version: "1.40.0".into(),
            rendering: crate::snapshot::Rendering::Envoy,
            method: "DeltaAggregatedResources",
            since: MonoTime::ZERO,
            kinds: [(Kind::Cluster, KindStatus { refused, ..Default::default() })].into(),
            clusters: BTreeSet::new(),
            settled: BTreeMap::new(),
        }
    }

    fn holding(name: &str, truth: Truth) -> Holding {
        Holding { kind: Kind::Cluster, name: name.into(), held: None, truth, sent: None, refused: None }
    }

    #[test]
    fn how_a_client_stands_is_said_in_the_words_of_csds() {
        use ClientResourceStatus::{Acked, DoesNotExist, Nacked, Requested};
        use ConfigStatus::{Error, NotSent, Stale, Synced};
        let (one, two): (Arc<str>, Arc<str>) = ("1".into(), "2".into());
        let there = || holding("c", Truth::Version(two.clone()));
        let (held, sent) = (Some(one.clone()), Some(Said::Version(two.clone())));
        let removal = Some(Said::Removal);
        let cases = [
            (Holding { held: Some(two.clone()), ..there() }, Synced, Acked),
            (Holding { held: held.clone(), sent: sent.clone(), ..there() }, Stale, Acked),
            (Holding { sent: sent.clone(), ..there() }, Stale, Requested),
            (Holding { held: held.clone(), ..there() }, NotSent, Acked),
            (there(), NotSent, Requested),
            (Holding { held: held.clone(), ..holding("c", Truth::Withheld) }, NotSent, Acked),
            (Holding { held: held.clone(), refused: sent, ..there() }, Error, Nacked),
            (
                Holding { held: held.clone(), refused: removal.clone(), ..holding("c", Truth::Nothing) },
                Error,
                Nacked,
            ),
            (Holding { held: held.clone(), sent: removal, ..holding("c", Truth::Nothing) }, Stale, Acked),
            (holding("c", Truth::Nothing), Synced, DoesNotExist),
        ];
        for (holding, config, client) in cases {
            let said = generic(&status(), &holding);
            assert_eq!((said.config_status(), said.client_status()), (config, client), "{holding:?}");
            assert_eq!(said.version_info, holding.held.as_deref().unwrap_or_default());
            let words = said.error_state.map(|error| error.details);
            assert_eq!(words.as_deref(), holding.refused.map(|_| "not this one"));
        }
    }

    #[test]
    fn an_answer_that_would_have_no_end_is_refused() {
        let name = "x".repeat(1 << 20);
        let holdings = [holding(&name, Truth::Withheld), holding(&name, Truth::Nothing)];
        let mut answer = Answer::default();
        let told = (0..).take_while(|_| answer.tell(&status(), &holdings).is_ok()).count();
        assert_eq!(told, 15);
        assert_eq!(answer.tell(&status(), &holdings), Err(Refused::TooLarge));
        assert!(answer.end().encoded_len() <= MAX_ANSWER_BYTES);
    }

    #[test]
    fn what_cannot_be_matched_is_said_not_passed_over() {
        let regex = matcher(MatchPattern::SafeRegex(Default::default()), false);
        let metadata = NodeMatcher { node_metadatas: vec![Default::default()], ..Default::default() };
        for (bad, word) in [(regex, "regular expression"), (metadata, "metadata")] {
            let error = is_meant(&[NodeMatcher::default(), bad], "n").unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("exact, prefix, suffix or contains"), "{error}");
        }
    }
}
