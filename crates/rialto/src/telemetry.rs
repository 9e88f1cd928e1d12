//! Logs: to stderr, one line for each event, for people or as JSON.
//!
//! Lines go through a [`LineSink`], so that a stuck reader of stderr never holds up a call. Both
//! formats are written here and not taken ready-made, because what strangers sent may stand in any
//! field: it is escaped and cut, so an event can neither forge another nor drive a terminal. It
//! reads no environment: `main` hands in what to log.

use std::backtrace::Backtrace;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal};
use std::panic::{self, PanicHookInfo};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use gateway::escape::{self, MAX_VALUE_BYTES, OneLine};
use gateway::line_sink::{LineSink, Options};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::config::{LogFormat, LogSettings};
use crate::terminal::{Events, Terminal, Wanted};

/// How long the end of the process waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Writes the last lines when it is dropped: `main` keeps it to its end.
#[derive(Debug)]
#[must_use = "dropping it at once would leave the last lines unwritten"]
pub(crate) struct Telemetry {
    output: Output,
}

/// Where events go.
#[derive(Debug)]
enum Output {
    Lines(LineSink),
    Terminal(Terminal),
}

impl Telemetry {
    /// Returns where the lines go, if they are not shown on a terminal.
    pub(crate) fn sink(&self) -> Option<LineSink> {
        match &self.output {
            Output::Lines(sink) => Some(sink.clone()),
            Output::Terminal(_) => None,
        }
    }

    /// Waits until the lines so far are written; for code that ends the process without returning.
    pub(crate) fn flush(&self) -> bool {
        match &self.output {
            Output::Lines(sink) => sink.flush(LAST_LINES),
            Output::Terminal(terminal) => terminal.finish(),
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Sets up logs for the whole process; without a filter the level is info.
pub(crate) fn init(settings: &LogSettings) -> anyhow::Result<Telemetry> {
    let sink = LineSink::stderr(Options::named("log")).context("cannot write logs to stderr")?;
    let filter = filter(settings.filter.as_deref())?;
    let lines = Lines { sink: sink.clone() };
    let is_human = settings.format == LogFormat::Human;
    let has_colour = is_human && settings.colour && io::stderr().is_terminal();
    tracing::subscriber::set_global_default(subscriber(settings.format, filter, has_colour, lines))
        .context("logs are set up already")?;
    panic::set_hook(Box::new(log_panic));
    Ok(Telemetry {
        output: Output::Lines(sink),
    })
}

/// Sets up logs for the whole process, shown on a terminal.
pub(crate) fn init_terminal(
    directives: &str,
    terminal: &Terminal,
    wanted: Wanted,
) -> anyhow::Result<Telemetry> {
    let events = Events {
        terminal: terminal.clone(),
        wanted,
    };
    let subscriber = tracing_subscriber::registry()
        .with(filter(Some(directives))?)
        .with(events);
    tracing::subscriber::set_global_default(subscriber).context("logs are set up already")?;
    panic::set_hook(Box::new(log_panic));
    Ok(Telemetry {
        output: Output::Terminal(terminal.clone()),
    })
}

fn filter(directives: Option<&str>) -> anyhow::Result<EnvFilter> {
    let directives = directives
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .unwrap_or("info");
    EnvFilter::builder()
        .parse(directives)
        .with_context(|| format!("log directives {directives:?}"))
}

fn subscriber(
    format: LogFormat,
    filter: EnvFilter,
    has_colour: bool,
    lines: Lines,
) -> Box<dyn Subscriber + Send + Sync> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_colour)
        .with_writer(lines);
    match format {
        LogFormat::Human => Box::new(builder.fmt_fields(Human).event_format(Human).finish()),
        LogFormat::Json => Box::new(builder.fmt_fields(Json).event_format(Json).finish()),
    }
}

/// The usual hook writes to stderr itself, which can block, and prints messages that may quote what
/// a caller sent. This one logs: the place always, a composed message only where debug logs are
/// wanted.
fn log_panic(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let reason = info.payload().downcast_ref::<&'static str>().copied();
    tracing::error!(place, reason, "panic");
    let composed = info.payload().downcast_ref::<String>();
    tracing::debug!(place, detail = composed, backtrace = %Backtrace::capture(), "panic in detail");
}

/// Hands each event to the sink as one line.
struct Lines {
    sink: LineSink,
}

struct Line<'a> {
    sink: &'a LineSink,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { sink: &self.sink }
    }
}

impl io::Write for Line<'_> {
    /// Writes an event, which the formatter hands over whole. A line that does not fit is lost and
    /// counted; to fail here would only make the formatter complain on the very stderr that is
    /// stuck.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.sink.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `2026-11-15T10:00:00.000Z  INFO gateway::process: child started pid=7 destination="echo"`
struct Human;

impl<S, N> FormatEvent<S, N> for Human
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let colour = match *metadata.level() {
            _ if !writer.has_ansi_escapes() => None,
            Level::ERROR => Some(31),
            Level::WARN => Some(33),
            Level::INFO => Some(32),
            _ => Some(34),
        };
        write!(writer, "{} ", humantime::format_rfc3339_millis(SystemTime::now()))?;
        match colour {
            Some(code) => write!(writer, "\x1b[{code}m{:>5}\x1b[0m ", metadata.level())?,
            None => write!(writer, "{:>5} ", metadata.level())?,
        }
        for span in context
            .event_scope()
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            write!(writer, "{}", span.name())?;
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>()
                && !fields.is_empty()
            {
                write!(writer, "{{{}}}", fields.fields.trim())?;
            }
            writer.write_str(": ")?;
        }
        write!(writer, "{}:", metadata.target())?;
        context.format_fields(writer.by_ref(), event)?;
        writer.write_char('\n')
    }
}

impl<'writer> FormatFields<'writer> for Human {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = HumanFields {
            writer,
            result: Ok(()),
        };
        fields.record(&mut visitor);
        visitor.result
    }

    /// Each field brings the space in front of it, so none is needed between old and new.
    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        fields: &tracing::span::Record<'_>,
    ) -> fmt::Result {
        self.format_fields(current.as_writer(), fields)
    }
}

struct HumanFields<'writer> {
    writer: Writer<'writer>,
    result: fmt::Result,
}

impl HumanFields<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        self.writer.write_char(' ')?;
        if field.name() != "message" {
            write!(self.writer, "{}=", field.name())?;
        }
        OneLine::new(&mut self.writer, MAX_VALUE_BYTES).write_fmt(value)
    }
}

impl Visit for HumanFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.result = self
            .result
            .and_then(|()| self.write(field, format_args!("{value:?}")));
    }
}

/// `{"ts":"…","level":"INFO","target":"…","message":"…","pid":7,"spans":[{"span":"task"}]}`
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        write!(
            writer,
            "{{\"ts\":\"{}\",\"level\":\"{}\",\"target\":",
            humantime::format_rfc3339_millis(SystemTime::now()),
            metadata.level()
        )?;
        escape::json_string(&mut writer, metadata.target(), MAX_VALUE_BYTES)?;
        context.format_fields(writer.by_ref(), event)?;
        let mut separator = ",\"spans\":[";
        for span in context
            .event_scope()
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            write!(writer, "{separator}{{\"span\":")?;
            escape::json_string(&mut writer, span.name(), MAX_VALUE_BYTES)?;
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                writer.write_str(fields)?;
            }
            writer.write_char('}')?;
            separator = ",";
        }
        writer.write_str(if separator == "," { "]}\n" } else { "}\n" })
    }
}

/// Fields are written as `,"name":value` each, so that they can follow any other member.
impl<'writer> FormatFields<'writer> for Json {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = JsonFields {
            writer,
            result: Ok(()),
        };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct JsonFields<'writer> {
    writer: Writer<'writer>,
    result: fmt::Result,
}

impl JsonFields<'_> {
    fn text(&mut self, field: &Field, value: &str) {
        self.write(field, |writer| {
            escape::json_string(writer, value, MAX_VALUE_BYTES)
        });
    }

    fn plain(&mut self, field: &Field, value: impl fmt::Display) {
        self.write(field, |writer| write!(writer, "{value}"));
    }

    fn write(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        self.result = self.result.and_then(|()| {
            self.writer.write_char(',')?;
            escape::json_string(&mut self.writer, field.name(), MAX_VALUE_BYTES)?;
            self.writer.write_char(':')?;
            value(&mut self.writer)
        });
    }
}

impl Visit for JsonFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, value);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no word for what is no number.
        if value.is_finite() {
            self.plain(field, value);
        } else {
            self.plain(field, "null");
        }
    }
}

#[cfg(test)]
mod tests;
