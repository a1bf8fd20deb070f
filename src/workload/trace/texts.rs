//! Tokens of a text: counted with the model's tokenizer, or estimated from the number of characters.

use std::path::Path;

use super::TraceFormat;
use crate::error::{InputError, Result};

/// Characters that stand for a token where a file has only text: English prose in byte-pair vocabularies of 100,000
/// and more entries has 4 to 4.5, code about 3.
pub const CHARACTERS_PER_TOKEN: f64 = 4.0;

/// How texts become numbers of tokens. The default estimates them from their characters.
#[derive(Clone, Debug, Default)]
pub struct TextTokens {
    /// Name of the file that texts are counted with.
    file: Option<String>,
    #[cfg(feature = "tokenizers")]
    tokenizer: Option<std::sync::Arc<tokenizers::Tokenizer>>,
}

impl TextTokens {
    /// Counts with the `tokenizer.json` at `path`, as transformers writes it.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is no tokenizer, and a build without the feature `tokenizers`.
    pub fn from_file(path: &Path) -> Result<TextTokens> {
        let bytes = crate::files::read(path)?;
        let file = path.display().to_string();
        Ok(read(&bytes, &file).map_err(|error| error.file(file))?)
    }

    /// Name of the file that texts are counted with; nothing where they are estimated.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// What must be known of the lengths of a file of `format`, if it holds texts.
    pub fn note(&self, format: TraceFormat) -> Option<String> {
        format.has_text().then(|| match self.file() {
            Some(file) => format!("texts are counted with {file}; a chat template adds its own tokens to each prompt"),
            None => format!(
                "some lengths are estimates, {CHARACTERS_PER_TOKEN} characters a token: count them with the model's \
                 tokenizer.json before planning"
            ),
        })
    }

    /// Tokens of `text`, without those of a chat template.
    pub fn count(&self, text: &str) -> u32 {
        #[cfg(feature = "tokenizers")]
        if let Some(tokenizer) = &self.tokenizer
            && let Ok(encoding) = tokenizer.encode_fast(text, false)
        {
            return u32::try_from(encoding.len()).unwrap_or(u32::MAX);
        }
        (text.chars().count() as f64 / CHARACTERS_PER_TOKEN).ceil() as u32
    }
}

#[cfg(feature = "tokenizers")]
fn read(bytes: &[u8], file: &str) -> std::result::Result<TextTokens, InputError> {
    let found = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| {
        InputError::new(error.to_string(), "give the tokenizer.json that lies beside the model's weights")
    })?;
    Ok(TextTokens { file: Some(file.to_owned()), tokenizer: Some(std::sync::Arc::new(found)) })
}

#[cfg(not(feature = "tokenizers"))]
fn read(_bytes: &[u8], _file: &str) -> std::result::Result<TextTokens, InputError> {
    let remedy = "build with `--features tokenizers`, or leave it out: texts are then estimated from their characters";
    Err(InputError::new("this build has no tokenizers", remedy))
}
