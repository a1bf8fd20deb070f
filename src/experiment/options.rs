//! What `decide` compares: the scenario's own options, those of the command line, or a set that suits most jobs.

use toml::{Table, Value};

use crate::engine::memory::RunningLimit;
use crate::error::{InputError, Result};
use crate::experiment::setup::Setup;
use crate::model::quantisation::StateDtype;
use crate::model::scenario::{Override, Scenario};

/// Something to do, as changes of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its name.
    pub name: String,
    /// The keys that it sets.
    pub set: Vec<Override>,
}

impl Choice {
    fn new(name: String, set: &[(&str, Value)]) -> Choice {
        let origin = format!("option \"{name}\":");
        let set = set.iter().map(|(key, value)| Override::new(key, value.clone(), &origin)).collect();
        Choice { name, set }
    }

    /// Reads `name: key=value; key=value` from a command line.
    ///
    /// # Errors
    /// Without a name or changes, or when one is no `key=value`.
    pub fn parse(text: &str) -> Result<Choice> {
        let remedy = "write --option 'cap 1024: job.max_tokens=1024; job.requests=500000'";
        let Some((name, set)) =
            text.split_once(':').filter(|(name, set)| !name.trim().is_empty() && !set.trim().is_empty())
        else {
            return Err(InputError::new(format!("found `{text}`"), remedy).file("--option").into());
        };
        let set = set.split(';').map(|change| Override::parse(change.trim())).collect::<Result<_>>()?;
        Ok(Choice { name: name.trim().to_owned(), set })
    }

    /// Both at once.
    fn and(&self, other: &Choice) -> Choice {
        let set = self.set.iter().chain(&other.set).cloned().collect();
        Choice { name: format!("{} + {}", self.name, other.name), set }
    }
}

/// The options of a scenario: those it lists, or the usual ones; running it as it is comes first.
///
/// # Errors
/// Bad scenarios, two options of one name, and one without changes.
pub fn choices(scenario: &Scenario, further: &[Choice]) -> Result<Vec<Choice>> {
    let mut all = vec![Choice { name: "as is".to_owned(), set: Vec::new() }];
    let listed = &scenario.tables.option;
    for (index, option) in listed.iter().enumerate() {
        let mut set = Vec::new();
        flatten(&option.set, "", &format!("option \"{}\":", option.name), &mut set);
        if set.is_empty() {
            let remedy = "give the keys that it sets, as in job.max_tokens = 2048";
            return Err(scenario.error(
                &format!("option[{index}]"),
                format!("`{}` changes nothing", option.name),
                remedy,
            ));
        }
        all.push(Choice { name: option.name.clone(), set });
    }
    if listed.is_empty() && further.is_empty() {
        all.extend(usual(scenario)?);
    }
    all.extend_from_slice(further);
    for (index, choice) in all.iter().enumerate() {
        if all[..index].iter().any(|other| other.name == choice.name) {
            let found = format!("two options are called `{}`", choice.name);
            return Err(InputError::new(found, "give each its own name (`as is` is taken)").key("option").into());
        }
    }
    Ok(all)
}

/// Tables down to values; a law of lengths is a value.
fn flatten(table: &Table, prefix: &str, origin: &str, set: &mut Vec<Override>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner)
                if !["law", "file", "p5", "mode", "values"].iter().any(|key| inner.contains_key(*key)) =>
            {
                flatten(inner, &key, origin, set);
            }
            value => set.push(Override::new(&key, value.clone(), origin)),
        }
    }
}

/// Caps, fewer samples, a larger running cap, no drafts, more GPUs, and two together.
fn usual(scenario: &Scenario) -> Result<Vec<Choice>> {
    let setup = Setup::new(scenario)?;
    let tables = &scenario.tables;
    let whole = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let mut found = Vec::new();
    let mut half_cap = None;
    if let Some(cap) = tables.job.max_tokens {
        for part in [cap / 2, cap / 4].into_iter().filter(|part| *part >= 16) {
            let choice = Choice::new(format!("max_tokens {part}"), &[("job.max_tokens", whole(part))]);
            half_cap.get_or_insert(choice.clone());
            found.push(choice);
        }
    }
    if let Some(requests) = tables.job.requests.filter(|requests| *requests > 1) {
        let fewer = if requests > 600_000 { 500_000 } else { requests / 2 };
        found.push(Choice::new(format!("{fewer} samples"), &[("job.requests", whole(fewer))]));
    }
    let lifts = lifts(scenario, &setup)?;
    found.extend(lifts.clone());
    if tables.engine.speculation.as_ref().is_some_and(|speculation| speculation.enabled != Some(false)) {
        found.push(Choice::new("MTP off".to_owned(), &[("engine.speculation.enabled", Value::Boolean(false))]));
    }
    let gpus = u64::from(tables.fleet.gpus);
    found.push(Choice::new(format!("{} GPUs", 2 * gpus), &[("fleet.gpus", whole(2 * gpus))]));
    if let (Some(lift), Some(cap)) = (lifts.last(), half_cap) {
        found.push(lift.and(&cap));
    }
    Ok(found)
}

/// Ways to let more requests run at once, where a cap is set by numbers that can be changed: up to twice as many, as far
/// as the memory for them leaves each its longest context.
fn lifts(scenario: &Scenario, setup: &Setup) -> Result<Vec<Choice>> {
    let Some(limits) = &setup.limits else { return Ok(Vec::new()) };
    let tables = &scenario.tables;
    let cap = u64::from(setup.settings.running_cap);
    let longest = tables.job.max_tokens.unwrap_or(u64::MAX).min(tables.job.context_tokens.unwrap_or(u64::MAX));
    let fits = |set: &[(&str, Value)]| -> Result<bool> {
        let tried = Setup::new(&scenario.with(&Choice::new("tried".to_owned(), set).set)?)?;
        let running = u64::from(tried.settings.running_cap);
        Ok(longest == u64::MAX || tried.settings.kv_pool_tokens >= running.saturating_mul(longest))
    };
    let whole = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    match (limits.running_limit, &limits.state) {
        (RunningLimit::StateSlots, Some(state)) => {
            let reserved = state.reserved_per_request.value;
            let mut found = Vec::new();
            for running in (cap + 1..=2 * cap).rev() {
                let set = [("engine.state_slots", whole(running * reserved))];
                // More slots than memory has room for is no lift.
                if matches!(fits(&set), Ok(true)) {
                    found.push(Choice::new(format!("{running} running: {} state slots", running * reserved), &set));
                    break;
                }
            }
            if tables.model.as_ref().is_some_and(|model| model.state != Some(StateDtype::Bfloat16)) {
                let dtype = ("model.state", Value::String("bfloat16".to_owned()));
                let set = [("engine.state_slots", whole(2 * cap * reserved)), dtype];
                if matches!(fits(&set), Ok(true)) {
                    found.push(Choice::new(format!("{} running: bf16 states", 2 * cap), &set));
                }
            }
            Ok(found)
        }
        (RunningLimit::MaxRunning, _) if tables.engine.max_running.is_some() => {
            let set = [("engine.max_running", whole(2 * cap))];
            Ok(vec![Choice::new(format!("{} running", 2 * cap), &set)])
        }
        _ => Ok(Vec::new()),
    }
}
