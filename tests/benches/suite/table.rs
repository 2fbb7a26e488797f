//! The figures, as they are printed and written.

use serde_json::{Value, json};

/// What a figure counts.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Microseconds,
    Milliseconds,
    PerSecond,
    MebibytesPerSecond,
    Kibibytes,
    Mebibytes,
    Percent,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::PerSecond => "/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::Kibibytes => "KiB",
            Self::Mebibytes => "MiB",
            Self::Percent => "%",
        }
    }

    fn text(self, value: f64) -> String {
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        format!("{value:.digits$} {}", self.name())
    }
}

/// What a figure is to come to.
#[derive(Clone, Copy)]
pub(crate) enum Aim {
    /// The ratio to the baseline.
    RatioAtMost(f64),
    RatioAtLeast(f64),
    AtMost(f64),
    /// The value that 99 % stay below.
    P99AtMost(f64),
}

/// One figure.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// The median, where there are many.
    pub(crate) value: f64,
    pub(crate) p99: Option<f64>,
    pub(crate) baseline: Option<Baseline>,
    pub(crate) aim: Option<Aim>,
    /// Microseconds of processor time for each, of the agent and of its client.
    pub(crate) cpu: Option<[f64; 2]>,
    /// The most memory that the agent had until then, in MiB.
    pub(crate) peak: Option<f64>,
}

/// What a figure is compared with.
pub(crate) struct Baseline {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Of the figure to this.
    pub(crate) ratio: f64,
}

impl Row {
    /// A figure by itself.
    pub(crate) fn new(name: impl Into<String>, unit: Unit, value: f64) -> Self {
        Self { name: name.into(), unit, value, p99: None, baseline: None, aim: None, cpu: None, peak: None }
    }

    pub(crate) fn aim(self, aim: Aim) -> Self {
        Self { aim: Some(aim), ..self }
    }

    /// Compared with another figure of the same unit.
    pub(crate) fn beside(self, name: impl Into<String>, value: f64) -> Self {
        let baseline = Baseline { name: name.into(), value, ratio: self.value / value };
        Self { baseline: Some(baseline), ..self }
    }

    fn is_met(&self) -> Option<bool> {
        let ratio = self.baseline.as_ref().map(|baseline| baseline.ratio);
        Some(match self.aim? {
            Aim::RatioAtMost(most) => ratio? <= most,
            Aim::RatioAtLeast(least) => ratio? >= least,
            Aim::AtMost(most) => self.value <= most,
            Aim::P99AtMost(most) => self.p99? <= most,
        })
    }

    fn line(&self) -> String {
        let text = |value: Option<f64>| value.map(|value| self.unit.text(value)).unwrap_or_default();
        let baseline = self.baseline.as_ref();
        let ratio = baseline.map(|baseline| format!("{:.2} x", baseline.ratio)).unwrap_or_default();
        let aim = match self.aim {
            Some(Aim::RatioAtMost(most)) => format!("<= {most:.2} x"),
            Some(Aim::RatioAtLeast(least)) => format!(">= {least:.2} x"),
            Some(Aim::AtMost(most)) => format!("<= {}", self.unit.text(most)),
            Some(Aim::P99AtMost(most)) => format!("p99 <= {}", self.unit.text(most)),
            None => String::new(),
        };
        let met = match self.is_met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        let cpu = self.cpu.map(|[agent, client]| format!("{agent:.0} + {client:.0} us")).unwrap_or_default();
        let peak = self.peak.map(|peak| format!("{peak:.0} MiB")).unwrap_or_default();
        let against = baseline.map(|baseline| format!("{}: {}", baseline.name, self.unit.text(baseline.value)));
        let line = format!(
            "  {:<38} {:>11} {:>11}  {:<42} {ratio:>8}  {aim:<13} {met:<6} {cpu:>15} {peak:>8}",
            self.name,
            self.unit.text(self.value),
            text(self.p99),
            against.unwrap_or_default(),
        );
        line.trim_end().to_owned()
    }

    fn json(&self, group: &str) -> Value {
        let baseline = self.baseline.as_ref();
        json!({
            "group": group,
            "name": self.name,
            "unit": self.unit.name(),
            "value": self.value,
            "p99": self.p99,
            "baseline": baseline.map(|baseline| &baseline.name),
            "baseline_value": baseline.map(|baseline| baseline.value),
            "ratio": baseline.map(|baseline| baseline.ratio),
            "aim_met": self.is_met(),
            "agent_cpu_us": self.cpu.map(|[agent, _]| agent),
            "client_cpu_us": self.cpu.map(|[_, client]| client),
            "agent_peak_mib": self.peak,
        })
    }
}

/// All figures so far; each is printed when it is there.
#[derive(Default)]
pub(crate) struct Table {
    group: &'static str,
    rows: Vec<Value>,
}

impl Table {
    pub(crate) fn begin(&mut self, group: &'static str) {
        self.group = group;
        println!(
            "\n{group:<40} {:>11} {:>11}  {:<42} {:>8}  {:<20} {:>15} {:>8}",
            "value (p50)", "p99", "compared with", "ratio", "aim", "agent + client", "peak"
        );
    }

    pub(crate) fn add(&mut self, row: Row) {
        println!("{}", row.line());
        self.rows.push(row.json(self.group));
    }

    pub(crate) fn json(&self, machine: &str) -> String {
        format!("{:#}\n", json!({ "machine": machine, "rows": self.rows }))
    }
}
