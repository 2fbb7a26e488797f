//! The list of sandboxes, in pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::api::detail;
use crate::app::App;
use crate::failure::{Failure, answer};
use crate::sandbox::Sandbox;
use crate::times::from_rfc3339;

const MAX_PAGE: usize = 100;

#[derive(Debug, Default, PartialEq)]
struct Query {
    metadata: BTreeMap<String, String>,
    running: bool,
    paused: bool,
    ascending: bool,
    started_after: Option<SystemTime>,
    template: Option<String>,
    limit: usize,
    skip: usize,
}

impl Query {
    fn read(text: &str) -> Result<Self, Failure> {
        let mut query = Self { running: true, paused: true, limit: MAX_PAGE, ..Self::default() };
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let malformed = || Failure::invalid(format!("{name}: {value:?} is not what it can be"));
            match &*name {
                "metadata" => query.metadata = metadata(&value),
                "state" => {
                    let has = |state| value.split(',').any(|word| word == state);
                    (query.running, query.paused) = (has("running"), has("paused"));
                }
                "order" => query.ascending = value == "asc",
                "startedAfter" => query.started_after = Some(from_rfc3339(&value).ok_or_else(malformed)?),
                "template" => query.template = Some(value.into_owned()),
                "limit" => query.limit = value.parse().map_err(|_| malformed())?,
                "nextToken" => query.skip = value.parse().map_err(|_| malformed())?,
                _ => {}
            }
        }
        query.limit = query.limit.clamp(1, MAX_PAGE);
        Ok(query)
    }

    fn matches(&self, sandbox: &Sandbox) -> bool {
        let claim = &sandbox.claim;
        let has = |(key, value): (&String, &String)| claim.metadata.get(key) == Some(value);
        let is_wanted = if sandbox.is_paused { self.paused } else { self.running };
        is_wanted
            && self.metadata.iter().all(has)
            && self.started_after.is_none_or(|after| claim.started >= after)
            && self.template.as_ref().is_none_or(|template| *template == claim.template)
    }
}

/// Names and values are encoded once more in it.
fn metadata(text: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    form_urlencoded::parse(text.as_bytes()).map(|(name, value)| (decode(&name), decode(&value))).collect()
}

pub(crate) async fn list(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    app.keys.check(&headers)?;
    let query = Query::read(query.as_deref().unwrap_or_default())?;
    let mut found: Vec<_> = app.pool.sandboxes().filter(|(_, sandbox)| query.matches(sandbox)).collect();
    found.sort_by_key(|(_, sandbox)| (sandbox.claim.started, sandbox.claim.id.clone()));
    if !query.ascending {
        found.reverse();
    }
    let end = query.skip.saturating_add(query.limit);
    let page: Vec<Value> =
        found.iter().skip(query.skip).take(query.limit).map(|(target, sandbox)| detail(target, sandbox)).collect();
    let answer = answer(StatusCode::OK, &page.into());
    match found.len() > end {
        true => Ok(([("x-next-token", end.to_string())], answer).into_response()),
        false => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_twice() {
        let query = Query::read("metadata=a%252520b%3Dc%25252Bd%26e%3D&state=paused&limit=1000").unwrap();
        let pairs = [("a b", "c+d"), ("e", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(query.metadata, BTreeMap::from(pairs));
        assert_eq!((query.running, query.paused, query.limit), (false, true, MAX_PAGE));
        for wrong in ["limit=x", "nextToken=-1", "startedAfter=yesterday"] {
            assert!(Query::read(wrong).is_err(), "{wrong}");
        }
    }
}
