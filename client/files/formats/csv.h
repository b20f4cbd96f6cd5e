// Matrices written as CSV: a row a line, numbers between commas, no heading.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_CSV_H_
#define EPLB_CLIENT_FILES_FORMATS_CSV_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eplb {

// Whether the first line that is not blank is two or more numbers between commas.
bool LooksLikeCsv(std::string_view text);

// The same matrix as JSON, line for line, so that one reader checks both. Numbers are written as
// JSON writes them, e.g. 12, -3, 1.5e+03; spaces around them and blank lines are skipped. errors:
// InvalidArgument naming line and column: a cell that is no such number (NaN and infinity are
// none).
absl::StatusOr<std::string> CsvToJson(std::string_view text);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_CSV_H_
