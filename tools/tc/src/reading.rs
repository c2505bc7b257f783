//! The first reading of a file to load: surveys it, and encodes its rules. Nothing is sent before the last
//! line is known to be valid, so the kernel is idle meanwhile: two threads read a half each.

use std::io::Read;

use linux::Netns;
use session::Fault;
use tc_rules::kernel::{Devices, Encoder};
use tc_rules::{Batch, Command};

use super::file::BatchFile;
use super::rule_options::{Fitter, LoadNotes, RuleOptions};
use super::survey::Survey;

/// The maximum number of encoded bytes per half that are kept until the rest of the file is known to be
/// valid; anything beyond is read twice.
const HELD_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// The result of reading a file.
#[derive(Debug, Default)]
pub(super) struct Reading<'n> {
    pub(super) survey: Survey,
    /// The encoded commands, up to the line `encoded_to`.
    pub(super) encoded: Option<Encoder>,
    /// The last line whose command is encoded.
    pub(super) encoded_to: u32,
    /// Whether `encoded_to` is the line of the file's last command.
    pub(super) whole: bool,
    /// Notes on the encoded rules, such as how many have cookies.
    pub(super) notes: LoadNotes,
    /// Descriptors that encoded rules refer to, which must stay open until they are sent.
    pub(super) devices: Option<Devices<'n>>,
    lines: u32,
}

/// Reads all of a file and encodes it.
pub(super) fn read<'n>(
    file: &BatchFile,
    netns: &'n Netns,
    devices: &mut Devices<'n>,
    options: &RuleOptions<'_>,
    encoder: impl Fn(u64) -> Encoder,
) -> Result<Reading<'n>, Fault> {
    halves(file, netns, devices, |bytes| Some((Fitter::new(options), encoder(bytes.min(HELD_BYTES_MAX)))))
}

/// Reads a whole file only to survey it.
pub(super) fn survey<'n>(
    file: &BatchFile,
    netns: &'n Netns,
    devices: &mut Devices<'n>,
) -> Result<Survey, Fault> {
    Ok(halves(file, netns, devices, |_| None)?.survey)
}

/// Reads both halves of a file in parallel, or a short file in one piece.
fn halves<'n, 'w>(
    file: &BatchFile,
    netns: &'n Netns,
    devices: &mut Devices<'n>,
    encoding: impl Fn(u64) -> Option<(Fitter<'w>, Encoder)>,
) -> Result<Reading<'n>, Fault> {
    let Some(middle) = file.middle() else {
        return part(file, &mut file.commands(), devices, encoding(file.length()));
    };
    std::thread::scope(|scope| {
        let later = encoding(file.length().saturating_sub(middle));
        let later = std::thread::Builder::new().name("tc-reader".to_owned()).spawn_scoped(scope, move || {
            let mut devices = Devices::of(netns);
            let mut batch = file.commands_of(middle, u64::MAX);
            let reading = part(file, &mut batch, &mut devices, later)?;
            Ok::<_, Fault>(Reading { devices: Some(devices), ..reading })
        });
        let later = later.map_err(|error| Fault::file("a thread that reads rules", error))?;
        let mut reading = part(file, &mut file.commands_of(0, middle), devices, encoding(middle))?;
        reading.append(later.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        Ok(reading)
    })
}

/// Reads a part of a file, with line numbers relative to it.
fn part<'n>(
    file: &BatchFile,
    batch: &mut Batch<Box<dyn Read + '_>>,
    devices: &mut Devices<'_>,
    encoding: Option<(Fitter<'_>, Encoder)>,
) -> Result<Reading<'n>, Fault> {
    let mut reading = Reading { whole: encoding.is_some(), ..Reading::default() };
    let (mut fitter, mut encoded) = encoding.unzip();
    let mut mistakes = Survey::default();
    file.each_of(
        batch,
        devices,
        |line, command, _| {
            reading.survey.note(line, command);
            if let (Some(fitter), Some(encoded)) = (&mut fitter, &mut encoded) {
                // Lines for tc, and all lines after them, must wait for the earlier ones.
                reading.whole &= encoded.bytes() < HELD_BYTES_MAX && !matches!(command, Command::Foreign(_));
                if reading.whole {
                    fitter.fit(command)?;
                    encoded.push(line, command);
                    reading.encoded_to = line;
                }
            }
            Ok(true)
        },
        |mistake| {
            mistakes.mistake(mistake);
            Ok(())
        },
    )?;
    reading.survey.append(mistakes, 0);
    reading.survey.listings = batch.listings();
    reading.notes = fitter.map(Fitter::notes).unwrap_or_default();
    Ok(Reading { encoded, lines: batch.lines_read(), ..reading })
}

impl<'n> Reading<'n> {
    /// Creates a reading of which only the survey exists, without encoded commands.
    pub(super) fn of(survey: Survey) -> Self {
        Self { survey, ..Self::default() }
    }

    /// Appends the reading of a later part.
    fn append(&mut self, later: Self) {
        self.survey.append(later.survey, self.lines);
        // A part that does not directly follow the encoded lines is read again.
        let Some((encoded, mut more)) = self.encoded.as_mut().filter(|_| self.whole).zip(later.encoded)
        else {
            return;
        };
        more.shift(self.lines);
        encoded.append(more);
        if later.encoded_to > 0 {
            self.encoded_to = later.encoded_to.saturating_add(self.lines);
        }
        (self.whole, self.devices) = (later.whole, later.devices);
        self.notes.append(later.notes);
    }
}
