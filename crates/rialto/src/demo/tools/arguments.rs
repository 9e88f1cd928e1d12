//! The arguments of a tool, read with errors that a model can act upon.
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::demo::message::Object;

#[derive(Debug)]
pub(super) struct Arguments<'a>(pub(super) &'a Object);

impl<'a> Arguments<'a> {
    pub(super) fn text(&self, name: &str) -> Result<&'a str, String> {
        self.optional_text(name)?
            .ok_or_else(|| format!("argument {name:?} is missing: it must be a string"))
    }

    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("argument {name:?} must be a string")),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<&'a Value, String> {
        match self.0.get(name) {
            Some(number @ Value::Number(_)) => Ok(number),
            Some(_) => Err(format!("argument {name:?} must be a number")),
            None => Err(format!("argument {name:?} is missing: it must be a number")),
        }
    }

    pub(super) fn integer(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> Result<u64, String> {
        let Some(value) = self.0.get(name) else {
            return Ok(default);
        };
        value
            .as_u64()
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                format!(
                    "argument {name:?} must be a whole number from {} to {}",
                    range.start(),
                    range.end()
                )
            })
    }
}
