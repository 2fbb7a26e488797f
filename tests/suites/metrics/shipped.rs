//! The files that are shipped for metrics, against what a real agent exports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use telexec_tests::{Certs, Scrape};

use super::metered;

fn deploy(name: &str) -> String {
    let deploy: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy");
    std::fs::read_to_string(deploy.join(name)).unwrap()
}

/// All metrics that an agent can have, with their labels.
async fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let (certs, directory) = (Certs::new(), telexec_tests::directory());
    let syslog = "[audit.syslog]\naddress = \"tcp://127.0.0.1:1\"";
    let otlp = "[audit.otlp]\naddress = \"http://127.0.0.1:1\"";
    let collector = format!("[audit_collector]\ndirectory = {:?}", directory.path().join("collected"));
    let audit = format!("[audit]\nfile = {:?}\n{syslog}\n{otlp}\n{collector}", directory.path().join("audit.log"));
    let agent = metered().kept().mtls(&certs).policy("").config(audit).start();
    Scrape::of(&agent).await.metrics()
}

/// The words of an expression that look like names of metrics; a histogram's by its own name.
fn names(expression: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(|c: char| !is_part(c));
    let words = words.filter(|word| word.starts_with("telexec_") || word.starts_with("process_"));
    words.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
}

/// All values of this key, wherever they are.
fn values<'a>(json: &'a Value, key: &str) -> Vec<&'a str> {
    match json {
        Value::Object(object) => {
            let own = object.iter().filter(|(name, _)| *name == key).filter_map(|(_, value)| value.as_str());
            own.chain(object.values().flat_map(|value| values(value, key))).collect()
        }
        Value::Array(all) => all.iter().flat_map(|value| values(value, key)).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_has_every_metric_and_no_other() {
    let code = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let table = deploy("METRICS.md");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        (code(cells[1]).pop_first().unwrap(), code(cells[3]))
    });
    let (reported, mut shown) = (metrics().await, rows.collect::<BTreeMap<_, _>>());
    if !reported.contains_key("process_max_fds") {
        shown.remove("process_max_fds");
    }
    assert_eq!(reported, shown);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() {
    let metrics = metrics().await;
    let dashboard: Value = serde_json::from_str(&deploy("grafana/telexec.json")).unwrap();
    let queries = [values(&dashboard, "expr"), values(&dashboard, "definition")].concat();
    let alerts: Value = serde_saphyr::from_str(&deploy("prometheus/alerts.yml")).unwrap();
    let rules = values(&alerts, "expr");
    assert!(queries.len() > 20 && rules.len() > 5 && rules.len() == values(&alerts, "alert").len());
    assert_eq!((values(&alerts, "severity").len(), values(&alerts, "summary").len()), (rules.len(), rules.len()));
    for expression in queries.iter().chain(&rules) {
        let names = names(expression);
        let missing: Vec<_> = names.iter().filter(|name| !metrics.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{expression}: {missing:?}");
        assert!(!names.is_empty() || *expression == "up{job=\"telexec\"} == 0", "{expression}");
        // a label that there is not gives nothing, and says nothing
        for label in ["cause", "stage", "reason", "rpc", "decision", "result", "stream", "containment"] {
            let is_asked = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == label);
            let has_it = names.iter().any(|name| metrics[name].contains(label));
            assert!(!is_asked || has_it, "{expression}: no {label}");
        }
    }
}

/// Of each panel there is something to see, and none lies on another.
#[test]
fn the_dashboard_is_laid_out() {
    let dashboard: Value = serde_json::from_str(&deploy("grafana/telexec.json")).unwrap();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(x < 24 && taken.insert((x, y)), "{}", panel["title"]);
            }
        }
        let is_row = panel["type"] == "row";
        assert!(is_row || !panel["targets"].as_array().unwrap().is_empty(), "{}", panel["title"]);
    }
}
