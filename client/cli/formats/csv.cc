#include "client/cli/formats/csv.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_value.h"

namespace eplb {

namespace {

// True for a number of JSON in double's range.
bool IsNumber(absl::string_view cell) {
  const absl::StatusOr<wire::JsonValue> value = wire::ParseJson({cell.data(), cell.size()});
  return value.ok() && (value->kind == wire::JsonValue::Kind::kInteger ||
                        value->kind == wire::JsonValue::Kind::kReal);
}

std::vector<absl::string_view> CellsOf(std::string_view line) {
  std::vector<absl::string_view> cells =
      absl::StrSplit(absl::string_view(line.data(), line.size()), ',');
  for (absl::string_view& cell : cells) cell = absl::StripAsciiWhitespace(cell);
  return cells;
}

}  // namespace

bool LooksLikeCsv(std::string_view text) {
  const size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos) return false;
  text.remove_prefix(start);
  const std::vector<absl::string_view> cells = CellsOf(text.substr(0, text.find('\n')));
  return cells.size() > 1 && IsNumber(cells.front());
}

absl::StatusOr<std::string> CsvToJson(std::string_view text) {
  std::string json = "[";
  int64_t number = 1;
  for (const TextLine& line : SplitLines(text)) {
    if (json.size() > 1) json += ',';
    for (; number < line.number; ++number) json += '\n';
    const std::vector<absl::string_view> cells = CellsOf(line.text);
    const bool heading = json.size() == 1 && !IsNumber(cells.front());
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsNumber(cells[i])) {
        return InvalidInput(
            "line ", line.number, ", column ", i + 1, " is ",
            wire::JsonQuote(FirstCharacters({cells[i].data(), cells[i].size()}, 40)),
            ", expected a finite number", heading ? "; no heading is read" : "");
      }
      absl::StrAppend(&json, i == 0 ? "[" : ",", cells[i]);
    }
    json += ']';
  }
  return json + "]";
}

}  // namespace eplb
