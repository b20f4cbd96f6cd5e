// CSV: one row per line, numbers between commas, no heading.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eplb {

// True if the first line that is not blank is two or more cells between commas, and the first cell
// a number.
bool LooksLikeCsv(std::string_view text);

// Returns the same matrix as JSON, line for line, so that one reader checks both. Numbers have
// JSON's form, e.g. 12, -3, 1.5e+03; spaces around them and blank lines are skipped. errors:
// InvalidArgument naming line and column: a cell that is no such number (NaN and infinity are
// none).
absl::StatusOr<std::string> CsvToJson(std::string_view text);

}  // namespace eplb
