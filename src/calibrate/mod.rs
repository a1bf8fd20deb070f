//! From measured tables to what is unknown: fits, rival explanations of a plateau, and predictions put to the test.
//!
//! The simulator is run as each benchmark was. Parameters are scores of priors (`prior`), the fit is a least-squares
//! search for each structure (`mode`), importance sampling around what it finds (`posterior`), and Markov moves from there
//! (`moves`).

mod caps;
mod describe;
mod diagnose;
mod discrepancy;
mod evidence;
mod file;
mod fit;
mod load;
mod measurement;
mod mechanism;
mod mode;
mod model;
mod moves;
mod owed;
mod points;
mod posterior;
mod predict;
mod prior;
mod validate;

pub use caps::{ArithmeticCap, arithmetic_caps};
pub use describe::{Described, describe};
pub use diagnose::{Diagnosis, Explanation, Unmeasured, diagnose};
pub use evidence::Evidence;
pub use file::{CapQuantiles, FitFile, Fitted, Quantiles, table_hash};
pub use fit::{Fit, FitOptions, RowResidual, Summary, fit, signed_percent, table_model};
pub use load::{load_jobs, load_tables};
pub use measurement::Measurement;
pub use mechanism::Mechanism;
pub use mode::{Effort, Mode, find_mode, find_modes};
pub use model::{Model, NOISE_FLOOR, Residual, residuals, rms_log_error};
pub use moves::explore;
pub use owed::Owed;
pub use points::{Measured, Point, Points};
pub use posterior::{Draw, Posterior, sample, weighted_quantiles};
pub use predict::{Prediction, Structure, predict, simulations};
pub use prior::{Beside, Known, Laws, PLAIN, Parameter, Prior, base_priors, position_acceptance};
pub use validate::{Accuracy, Forecast, TableNote, Test, TestKind, Tested, Validation, Validator, forecast, validate};
