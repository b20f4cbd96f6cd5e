#include "client/cli/formats/tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/files.h"
#include "base/foreign_text.h"
#include "base/invalid_input.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/npy.h"

namespace eplb {

namespace {

// Takes the digits at the front; false when there is none.
bool TakeDigits(absl::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(digits);
  return digits > 0;
}

// JSON's grammar of a number.
bool IsNumber(absl::string_view text) {
  (void)absl::ConsumePrefix(&text, "-");
  const bool leading_zero = text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
  if (leading_zero || !TakeDigits(text)) return false;
  if (absl::ConsumePrefix(&text, ".") && !TakeDigits(text)) return false;
  if (absl::ConsumePrefix(&text, "e") || absl::ConsumePrefix(&text, "E")) {
    if (!absl::ConsumePrefix(&text, "+")) (void)absl::ConsumePrefix(&text, "-");
    if (!TakeDigits(text)) return false;
  }
  return text.empty();
}

// "1e999" is a number to JSON, and none to us.
bool IsFinite(absl::string_view number) {
  double value = 0;
  return absl::SimpleAtod(number, &value) && std::isfinite(value);
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
      if (!IsNumber(cells[i]) || !IsFinite(cells[i])) {
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

namespace {

constexpr int64_t kMaxTableCells = int64_t{1} << 28;
constexpr char kIndexRange[] = "-1..2^31-1";

std::string Named(std::string_view name) {
  return name.empty() ? std::string() : absl::StrCat(std::string(name), " ");
}

absl::Status OutOfRange(std::string_view name, int64_t row, int64_t entry, int64_t number) {
  return InvalidInput(Named(name), "layer ", row, " entry ", entry, " is ", number, ", expected ",
                      kIndexRange);
}

bool InRange(int64_t number) {
  return number >= -1 && number <= std::numeric_limits<int32_t>::max();
}

// errors unless the arrays at the second level, and at the third, are as long as their first.
absl::Status CheckRegular(const wire::JsonNumbers& numbers, std::string_view name) {
  const std::vector<int64_t>& rows = numbers.children[1];
  for (size_t row = 1; row < rows.size(); ++row) {
    if (rows[row] == rows[0]) continue;
    return InvalidInput(Named(name), "layer ", row, " has ", rows[row], " entries, layer 0 has ",
                        rows[0]);
  }
  if (numbers.children.size() < 3) return absl::OkStatus();
  const std::vector<int64_t>& inner = numbers.children[2];
  for (size_t i = 1; i < inner.size(); ++i) {
    if (inner[i] == inner[0]) continue;
    const auto columns = static_cast<size_t>(rows[0]);
    return InvalidInput(Named(name), "layer ", i / columns, " expert ", i % columns, " has ",
                        inner[i], " entries, the first has ", inner[0]);
  }
  return absl::OkStatus();
}

// Where the number of a row and an entry lies, in numbers from the first.
struct TableLayout {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 1;
  bool fortran_order = false;

  int64_t IndexOf(int64_t row, int64_t column, int64_t inner) const {
    return fortran_order ? row + rows * (column + columns * inner)
                         : (row * columns + column) * depth + inner;
  }
  int64_t num_cells() const { return rows * columns * depth; }
};

absl::StatusOr<TableLayout> TableLayoutOf(const NpyHeader& header, size_t dimensions) {
  if (header.shape.size() != dimensions) {
    return InvalidInput("has ", header.shape.size(), " dimensions, expected ", dimensions);
  }
  int64_t cells = 1;
  for (const int64_t size : header.shape) {
    if (size < 1) return InvalidInput("has a dimension of size 0");
    if (size > kMaxTableCells / cells) {
      return InvalidInput("claims ", absl::StrJoin(header.shape, " x "), " numbers, at most ",
                          kMaxTableCells, " are read");
    }
    cells *= size;
  }
  return TableLayout{.rows = header.shape[0],
                     .columns = header.shape[1],
                     .depth = dimensions == 3 ? header.shape[2] : 1,
                     .fortran_order = header.fortran_order};
}

// A uint64 above 2^63-1 comes out negative, which is out of range too.
template <class Number>
int64_t NumberAt(const char* data, int64_t index) {
  Number number;  // the data is not aligned
  std::memcpy(&number, data + static_cast<size_t>(index) * sizeof(Number), sizeof(Number));
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here, and keeps its sign.
  return static_cast<int64_t>(number);
}

struct IndexType {
  std::string_view descr;
  int64_t size;
  int64_t (*at)(const char* data, int64_t index);
};

constexpr IndexType kIndexTypes[] = {
    {"|i1", 1, &NumberAt<int8_t>},  {"|u1", 1, &NumberAt<uint8_t>},
    {"<i2", 2, &NumberAt<int16_t>}, {"<u2", 2, &NumberAt<uint16_t>},
    {"<i4", 4, &NumberAt<int32_t>}, {"<u4", 4, &NumberAt<uint32_t>},
    {"<i8", 8, &NumberAt<int64_t>}, {"<u8", 8, &NumberAt<uint64_t>},
};

absl::StatusOr<IndexType> FindIndexType(const std::string& descr) {
  for (const IndexType& type : kIndexTypes) {
    if (type.descr == descr) return type;
  }
  return InvalidInput("has the dtype ", descr,
                      ", expected little-endian integers, int8..int64 or uint8..uint64");
}

absl::StatusOr<IndexTable> ParseNpyTable(std::string_view bytes, size_t dimensions) {
  EPLB_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(bytes));
  EPLB_ASSIGN_OR_RETURN(const IndexType type, FindIndexType(header.descr));
  EPLB_ASSIGN_OR_RETURN(const TableLayout layout, TableLayoutOf(header, dimensions));
  const std::string_view data = bytes.substr(header.data_offset);
  const int64_t expected = layout.num_cells() * type.size;
  if (static_cast<int64_t>(data.size()) != expected) {
    const bool shorter = static_cast<int64_t>(data.size()) < expected;
    return InvalidInput(shorter ? "truncated: " : "too long: ", "has ", data.size(),
                        " bytes of numbers, the header claims ", expected);
  }
  IndexTable table{.cells = IndexMatrix(layout.rows, layout.columns * layout.depth),
                   .depth = layout.depth};
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t entry = 0; entry < table.cells.cols(); ++entry) {
      const int64_t index = layout.IndexOf(row, entry / layout.depth, entry % layout.depth);
      const int64_t number = type.at(data.data(), index);
      if (!InRange(number)) return OutOfRange("", row, entry, number);
      table.cells(row, entry) = static_cast<int32_t>(number);
    }
  }
  return table;
}

}  // namespace

absl::StatusOr<IndexTable> IndexTableFromJson(const wire::JsonValue& value, std::string_view name,
                                              size_t dimensions) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* numbers, wire::AsNumbers(value, name, dimensions));
  EPLB_RETURN_IF_ERROR(CheckRegular(*numbers, name));
  if (numbers->num_numbers() == 0) return InvalidInput(Named(name), "has no entries");
  EPLB_RETURN_IF_ERROR(wire::CheckIntegers(*numbers, name, kIndexRange));
  const int64_t depth = dimensions == 3 ? numbers->children[2].front() : 1;
  const auto rows = static_cast<int64_t>(numbers->children[1].size());
  IndexTable table{.cells = IndexMatrix(rows, numbers->children[1].front() * depth),
                   .depth = depth};
  for (Eigen::Index i = 0; i < table.cells.size(); ++i) {
    const int64_t number = numbers->integers[static_cast<size_t>(i)];
    if (!InRange(number)) {
      return OutOfRange(name, i / table.cells.cols(), i % table.cells.cols(), number);
    }
    table.cells.data()[i] = static_cast<int32_t>(number);
  }
  return table;
}

absl::StatusOr<IndexTable> IndexTableFromNpy(std::string_view bytes, std::string_view name,
                                             size_t dimensions) {
  absl::StatusOr<IndexTable> table = ParseNpyTable(bytes, dimensions);
  if (table.ok()) return table;
  return InvalidInput(Named(name), table.status().message());
}

std::string IndexTableToNpy(const IndexMatrix& cells, const std::vector<int64_t>& shape) {
  std::string header = absl::StrCat("{'descr': '<i8', 'fortran_order': False, 'shape': (",
                                    absl::StrJoin(shape, ", "), "), }");
  // The numbers begin at a multiple of 64 bytes; 10 bytes and a newline come besides.
  constexpr size_t kPrefix = 10;
  header.append(63 - (kPrefix + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes(kNpyMagic);
  bytes +=
      {'\1', '\0', static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  bytes += header;
  for (Eigen::Index i = 0; i < cells.size(); ++i) {
    const int64_t number = cells.data()[i];
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return bytes;
}

std::string RowToJson(const IndexMatrix& cells, Eigen::Index row) {
  const auto numbers = cells.row(row);
  return absl::StrCat("[", absl::StrJoin(numbers.begin(), numbers.end(), ","), "]");
}

}  // namespace eplb
