//! Keys of a TOML table taken one by one, so that a slip is answered with the nearest known key.

use toml::{Table, Value};

use crate::error::{InputError, Result, nearest};

/// A table whose keys are taken one by one; what was never asked for is an error at the end.
pub(crate) struct Fields<'a> {
    table: &'a Table,
    pub(crate) key: String,
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(table: &'a Table, key: &str) -> Self {
        Fields { table, key: key.to_owned(), asked: Vec::new() }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }

    /// Whether the key is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// The value of any type.
    pub(crate) fn value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.get(name)
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.asked.push(name);
        self.table.get(name)
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(other, "a text in quotes", &self.path(name)).into()),
        }
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let key = self.path(name);
        value.as_bool().map(Some).ok_or_else(|| wrong_type(value, "true or false", &key).into())
    }

    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<f64>> {
        self.get(name).map(|value| number(value, &self.path(name))).transpose()
    }

    pub(crate) fn numbers(&mut self, name: &'static str) -> Result<Option<Vec<f64>>> {
        let Some(items) = self.array(name)? else { return Ok(None) };
        let path = self.path(name);
        let numbers = items.iter().enumerate().map(|(place, item)| number(item, &format!("{path}[{place}]")));
        numbers.collect::<Result<_>>().map(Some)
    }

    pub(crate) fn array(&mut self, name: &'static str) -> Result<Option<&'a [Value]>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type(other, "a list [ … ]", &self.path(name)).into()),
        }
    }

    pub(crate) fn needed<T>(
        &mut self,
        name: &'static str,
        take: fn(&mut Self, &'static str) -> Result<Option<T>>,
        what: &str,
    ) -> Result<T> {
        match take(self, name)? {
            Some(value) => Ok(value),
            None => {
                self.finish_unless_missing(name)?;
                Err(InputError::new("missing", format!("give {what}")).key(self.path(name)).into())
            }
        }
    }

    pub(crate) fn needed_number(&mut self, name: &'static str) -> Result<f64> {
        self.needed(name, Fields::number, "a number")
    }

    pub(crate) fn finish(&self) -> Result<()> {
        match self.table.keys().find(|key| !self.asked.contains(&key.as_str())) {
            None => Ok(()),
            Some(unknown) => {
                let remedy = match nearest(unknown, self.asked.iter().copied()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("known keys are {}", self.asked.join(", ")),
                };
                Err(InputError::new("unknown key", remedy).key(self.path(unknown)).into())
            }
        }
    }

    /// A misspelt key explains a missing one: names the stranger that is nearest to `missing`.
    pub(crate) fn finish_unless_missing(&self, missing: &str) -> Result<()> {
        let strangers = self.table.keys().map(String::as_str).filter(|key| !self.asked.contains(key));
        match nearest(missing, strangers) {
            None => Ok(()),
            Some(near) => {
                Err(InputError::new("unknown key", format!("did you mean {missing}?")).key(self.path(near)).into())
            }
        }
    }
}

pub(crate) fn wrong_type(value: &Value, wanted: &str, key: &str) -> InputError {
    InputError::new(format!("{} {value}", value.type_str()), format!("{wanted} is needed")).key(key)
}

pub(crate) fn number(value: &Value, key: &str) -> Result<f64> {
    match value {
        Value::Integer(whole) => Ok(*whole as f64),
        Value::Float(real) => Ok(*real),
        other => Err(wrong_type(other, "a number", key).into()),
    }
}
