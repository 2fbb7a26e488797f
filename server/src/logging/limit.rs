//! Rate-limits log lines per callsite, so that unauthenticated peers cannot fill disks.
//!
//! Not limited: lines about an execution, which `max_starts_per_second` bounds, and levels below info.

use std::collections::HashMap;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota};
use tokio::sync::Notify;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, info};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

const LINES_A_SECOND: NonZeroU32 = NonZeroU32::new(10).unwrap();
const LINES_AT_ONCE: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// From the first suppressed line to the line with the count.
const REPORT_DELAY: Duration = Duration::from_secs(1);

/// A process has one log.
static SUPPRESSED: LazyLock<Suppressed> = LazyLock::new(Suppressed::default);

struct Suppressed {
    kinds: DefaultKeyedRateLimiter<Identifier>,
    lines: Mutex<HashMap<Identifier, Lines>>,
    some: Notify,
}

/// Suppressed lines of one callsite.
#[derive(Default)]
struct Lines {
    count: u64,
    /// The message of the first of them.
    message: String,
}

impl Default for Suppressed {
    fn default() -> Self {
        let quota = Quota::per_second(LINES_A_SECOND).allow_burst(LINES_AT_ONCE);
        Self { kinds: DefaultKeyedRateLimiter::hashmap(quota), lines: Mutex::default(), some: Notify::new() }
    }
}

/// The layer that suppresses lines above the limit.
pub(crate) struct Limit;

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || context.event_span(event).is_some() {
            return true;
        }
        let kind = metadata.callsite();
        let is_logged = SUPPRESSED.kinds.check_key(&kind).is_ok();
        if !is_logged {
            let mut all = SUPPRESSED.lines.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = all.entry(kind).or_default();
            if lines.count == 0 {
                event.record(lines);
            }
            lines.count += 1;
            SUPPRESSED.some.notify_one();
        }
        is_logged
    }
}

impl Visit for Lines {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

/// Logs how many lines were suppressed, a second after the first of them. Never returns.
pub async fn follow() {
    loop {
        SUPPRESSED.some.notified().await;
        tokio::time::sleep(REPORT_DELAY).await;
        report_suppressed();
    }
}

/// Logs how many lines were suppressed since the last report.
pub fn report_suppressed() {
    let lines = std::mem::take(&mut *SUPPRESSED.lines.lock().unwrap_or_else(PoisonError::into_inner));
    for Lines { count, message } in lines.into_values() {
        info!(suppressed = count, "{message}: more like this were suppressed");
    }
}
