//! What an agent says to a scraper.

use std::collections::{BTreeMap, BTreeSet};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::{Agent, within};

/// Where an agent answers scrapers.
///
/// # Panics
/// It does not.
pub fn metrics_address(agent: &Agent) -> String {
    let log = agent.log();
    log.lines().find_map(|line| line.strip_prefix("metrics on ")).expect(&log).to_owned()
}

/// All values of an agent by what stands before them, such as `telexec_executions_total{cause="exited"}`.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// As it was received.
    pub text: String,
    values: BTreeMap<String, f64>,
}

impl Scrape {
    /// Asks an agent.
    ///
    /// # Panics
    /// It does not answer well.
    pub async fn of(agent: &Agent) -> Self {
        let answer = ask(dial(&metrics_address(agent)).await, "GET /metrics").await;
        let (head, text) = answer.split_once("\r\n\r\n").expect(&answer);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let values = text.lines().filter(|line| !line.starts_with('#'));
        let values = values.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect(line);
            (series.to_owned(), value.parse().expect(line))
        });
        Self { values: values.collect(), text: text.to_owned() }
    }

    /// The value of a series.
    ///
    /// # Panics
    /// There is none.
    pub fn value(&self, series: &str) -> f64 {
        *self.values.get(series).unwrap_or_else(|| panic!("no {series} in {}", self.text))
    }

    /// The sum of all series of a metric.
    pub fn sum(&self, metric: &str) -> f64 {
        let of = |series: &&String| series.split('{').next() == Some(metric);
        self.values.keys().filter(of).map(|series| self.value(series)).sum()
    }

    /// Each metric with the names of its labels, a histogram as one.
    ///
    /// # Panics
    /// A label is malformed.
    pub fn metrics(&self) -> BTreeMap<String, BTreeSet<String>> {
        let types = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let histograms: BTreeSet<&str> = types.filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name).collect();
        let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for series in self.values.keys() {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let parts = ["_bucket", "_sum", "_count"];
            let base = parts.iter().find_map(|part| name.strip_suffix(part)).filter(|base| histograms.contains(base));
            let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
            let labels = labels.map(|label| label.split_once('=').expect(label).0.to_owned());
            metrics.entry(base.unwrap_or(name).to_owned()).or_default().extend(labels.filter(|label| label != "le"));
        }
        metrics
    }
}

/// Connects to where metrics are.
///
/// # Panics
/// Nothing listens there.
pub async fn dial(address: &str) -> Box<dyn crate::Stream> {
    match address.split_once("://").expect(address) {
        ("unix", path) => Box::new(UnixStream::connect(path).await.unwrap()),
        (_, address) => Box::new(TcpStream::connect(address).await.unwrap()),
    }
}

/// The whole answer to a request; empty: there is none.
pub async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    let mut answer = Vec::new();
    let asked = stream.write_all(format!("{request} HTTP/1.1\r\nhost: agent\r\n\r\n").as_bytes()).await;
    if asked.is_ok() {
        let _ = within(stream.read_to_end(&mut answer)).await;
    }
    String::from_utf8_lossy(&answer).into_owned()
}
