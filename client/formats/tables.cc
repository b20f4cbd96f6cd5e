#include "client/formats/tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/formats/npy.h"

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
    const bool heading = json.size() == 1 && std::none_of(cells.begin(), cells.end(), IsNumber);
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsNumber(cells[i]) || !IsFinite(cells[i])) {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", line.number, ", column ", i + 1, " is ",
                         wire::JsonQuote({cells[i].data(), std::min<size_t>(cells[i].size(), 40)}),
                         ", expected a finite number", heading ? "; no heading is read" : ""));
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
  return absl::InvalidArgumentError(absl::StrCat(Named(name), "layer ", row, " entry ", entry,
                                                 " is ", number, ", expected ", kIndexRange));
}

bool InRange(int64_t number) {
  return number >= -1 && number <= std::numeric_limits<int32_t>::max();
}

// errors unless the arrays at the second level, and at the third, are as long as their first.
absl::Status CheckRegular(const wire::JsonNumbers& numbers, std::string_view name) {
  const std::vector<int64_t>& rows = numbers.children[1];
  for (size_t row = 1; row < rows.size(); ++row) {
    if (rows[row] == rows[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat(Named(name), "layer ", row, " has ", rows[row],
                                                   " entries, layer 0 has ", rows[0]));
  }
  if (numbers.children.size() < 3) return absl::OkStatus();
  const std::vector<int64_t>& inner = numbers.children[2];
  for (size_t i = 1; i < inner.size(); ++i) {
    if (inner[i] == inner[0]) continue;
    const auto columns = static_cast<size_t>(rows[0]);
    return absl::InvalidArgumentError(absl::StrCat(Named(name), "layer ", i / columns, " expert ",
                                                   i % columns, " has ", inner[i],
                                                   " entries, the first has ", inner[0]));
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
    return absl::InvalidArgumentError(
        absl::StrCat("has ", header.shape.size(), " dimensions, expected ", dimensions));
  }
  int64_t cells = 1;
  for (const int64_t size : header.shape) {
    if (size < 1) return absl::InvalidArgumentError("has a dimension of size 0");
    if (size > kMaxTableCells / cells) {
      return absl::InvalidArgumentError(absl::StrCat("claims ", absl::StrJoin(header.shape, " x "),
                                                     " numbers, at most ", kMaxTableCells,
                                                     " are read"));
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
  return absl::InvalidArgumentError(absl::StrCat(
      "has the dtype ", descr, ", expected little-endian integers, int8..int64 or uint8..uint64"));
}

absl::StatusOr<IndexTable> ParseNpyTable(std::string_view bytes, size_t dimensions) {
  EPLB_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(bytes));
  EPLB_ASSIGN_OR_RETURN(const IndexType type, FindIndexType(header.descr));
  EPLB_ASSIGN_OR_RETURN(const TableLayout layout, TableLayoutOf(header, dimensions));
  const std::string_view data = bytes.substr(header.data_offset);
  const int64_t expected = layout.num_cells() * type.size;
  if (static_cast<int64_t>(data.size()) != expected) {
    const bool shorter = static_cast<int64_t>(data.size()) < expected;
    return absl::InvalidArgumentError(
        absl::StrCat(shorter ? "truncated: " : "too long: ", "has ", data.size(),
                     " bytes of numbers, the header claims ", expected));
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
  if (numbers->num_numbers() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(Named(name), "has no entries"));
  }
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
  return absl::InvalidArgumentError(absl::StrCat(Named(name), table.status().message()));
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

namespace {

constexpr char kKey[] = "initial_global_assignments";
constexpr int32_t kMaxLayer = 1 << 20;

// "3"; "03", "+3" and "3.0" are other systems' habits that would make two names of one layer.
absl::StatusOr<int32_t> LayerOf(const std::string& key) {
  int32_t layer = -1;
  if (!absl::SimpleAtoi(key, &layer) || layer < 0 || layer > kMaxLayer ||
      std::to_string(layer) != key) {
    return absl::InvalidArgumentError(absl::StrCat(
        kKey, " has the key ", wire::JsonQuote(key.substr(0, 80)), ", expected a layer number"));
  }
  return layer;
}

// Before memory is taken: that a row is as long as num_slots claims.
absl::Status CheckRow(const wire::JsonValue& value, const std::string& name, int64_t num_slots) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* numbers, wire::AsNumbers(value, name, 1));
  if (static_cast<int64_t>(numbers->num_numbers()) != num_slots) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has ", numbers->num_numbers(),
                                                   " entries, expected ", num_slots, " slots"));
  }
  EPLB_RETURN_IF_ERROR(wire::CheckIntegers(*numbers, name, kIndexRange));
  for (size_t slot = 0; slot < numbers->integers.size(); ++slot) {
    const int64_t expert = numbers->integers[slot];
    if (expert >= -1 && expert <= std::numeric_limits<int32_t>::max()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " slot ", slot, " is ", expert, ", expected an expert"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object,
                                                      int64_t num_slots) {
  const wire::JsonValue* assignments = object.Find(kKey);
  if (assignments == nullptr) return absl::InvalidArgumentError(absl::StrCat(kKey, " is missing"));
  if (!assignments->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kKey, " is ",
                                                   std::string(wire::KindName(assignments->kind)),
                                                   ", expected rows by layer number"));
  }
  std::map<int32_t, const wire::JsonValue*> rows;
  for (const wire::JsonMember& member : assignments->members) {
    EPLB_ASSIGN_OR_RETURN(const int32_t layer, LayerOf(member.key));
    EPLB_RETURN_IF_ERROR(CheckRow(member.value, absl::StrCat(kKey, " layer ", layer), num_slots));
    rows.emplace(layer, &member.value);
  }
  if (rows.empty()) return absl::InvalidArgumentError(absl::StrCat(kKey, " has no layers"));
  LayerAssignments result{.first_layer = rows.begin()->first,
                          .slots = IndexMatrix(static_cast<Eigen::Index>(rows.size()), num_slots)};
  Eigen::Index row = 0;
  for (const auto& [layer, value] : rows) {
    if (layer != result.first_layer + row) {
      return absl::InvalidArgumentError(absl::StrCat(kKey, ": layer ", result.first_layer + row,
                                                     " is missing, there are ", result.first_layer,
                                                     " and ", layer));
    }
    for (Eigen::Index slot = 0; slot < result.slots.cols(); ++slot) {
      result.slots(row, slot) =
          static_cast<int32_t>(value->numbers.integers[static_cast<size_t>(slot)]);
    }
    ++row;
  }
  return result;
}

namespace {

// "row 4", "rows 0..2" or "rows 0, 2, 4 and 12 more".
std::string RowsText(const std::vector<Eigen::Index>& rows) {
  constexpr size_t kMaxNamed = 8;
  if (rows.size() == 1) return absl::StrCat("row ", rows[0]);
  if (rows.back() - rows.front() + 1 == static_cast<Eigen::Index>(rows.size())) {
    return absl::StrCat("rows ", rows.front(), "..", rows.back());
  }
  std::string text = "rows";
  for (size_t i = 0; i < std::min(rows.size(), kMaxNamed); ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", rows[i]);
  }
  if (rows.size() > kMaxNamed) absl::StrAppend(&text, " and ", rows.size() - kMaxNamed, " more");
  return text;
}

absl::Status CheckRowsAreLeft(int32_t first_layer, Eigen::Index num_rows) {
  if (first_layer < num_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("has ", num_rows, " rows, --first-layer ", first_layer,
                   " leaves none of them; the file has a row for every layer of the model, "
                   "also for the dense ones"));
}

// dense: of each row, whether it looks like that of a dense layer. how: what makes it look so.
std::string NoteOn(const std::optional<int32_t>& first_layer, const std::vector<bool>& dense,
                   const char* how) {
  std::vector<Eigen::Index> rows;
  const size_t end = first_layer.has_value() ? static_cast<size_t>(*first_layer) : dense.size();
  for (size_t row = 0; row < end; ++row) {
    if (dense[row] != first_layer.has_value()) rows.push_back(static_cast<Eigen::Index>(row));
  }
  if (rows.empty()) return {};
  if (first_layer.has_value()) {
    return absl::StrCat(RowsText(rows), " left out for --first-layer ", *first_layer,
                        ", though not all ", how, " there");
  }
  if (rows.size() == dense.size()) return {};
  std::string note =
      absl::StrCat(RowsText(rows), rows.size() == 1 ? " looks" : " look", " like dense layers (",
                   how, "), and sglang has a row for every model layer");
  if (rows.back() + 1 == static_cast<Eigen::Index>(rows.size())) {
    absl::StrAppend(&note, "; give --first-layer ", rows.size(), " to leave them out");
  }
  return note;
}

bool HasTokens(const Load& load, Eigen::Index layer) {
  if (load.is_counts()) return (load.counts().row(layer) != 0).any();
  return (load.ToDouble().row(layer) != 0).any();
}

}  // namespace

IndexMatrix WithDenseRows(const IndexMatrix& slots, int32_t num_experts, int32_t first_layer) {
  IndexMatrix all(slots.rows() + first_layer, slots.cols());
  for (Eigen::Index row = 0; row < first_layer; ++row) {
    for (Eigen::Index slot = 0; slot < slots.cols(); ++slot) {
      all(row, slot) = static_cast<int32_t>(slot % num_experts);
    }
  }
  all.bottomRows(slots.rows()) = slots;
  return all;
}

absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          IndexMatrix& slots) {
  EPLB_RETURN_IF_ERROR(CheckRowsAreLeft(first_layer.value_or(0), slots.rows()));
  const Eigen::Index experts = std::max<Eigen::Index>(1, Eigen::Index{slots.maxCoeff()} + 1);
  std::vector<bool> dense(static_cast<size_t>(slots.rows()), true);
  for (Eigen::Index i = 0; i < slots.size(); ++i) {
    if (slots.data()[i] == i % slots.cols() % experts) continue;
    dense[static_cast<size_t>(i / slots.cols())] = false;
  }
  std::string note = NoteOn(first_layer, dense, "experts lie in order");
  slots = slots.bottomRows(slots.rows() - first_layer.value_or(0)).eval();
  return note;
}

absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          std::vector<LoadWindow>& windows) {
  const Eigen::Index rows = windows.front().load.num_layers();
  EPLB_RETURN_IF_ERROR(CheckRowsAreLeft(first_layer.value_or(0), rows));
  std::vector<bool> dense(static_cast<size_t>(rows), true);
  for (LoadWindow& window : windows) {
    for (Eigen::Index row = 0; row < rows; ++row) {
      if (HasTokens(window.load, row)) dense[static_cast<size_t>(row)] = false;
    }
    if (first_layer.value_or(0) == 0) continue;
    const Eigen::Index left = rows - *first_layer;
    EPLB_ASSIGN_OR_RETURN(window.load,
                          window.load.is_counts()
                              ? Load::FromCounts(window.load.counts().bottomRows(left))
                              : Load::FromEstimates(window.load.ToDouble().bottomRows(left)));
  }
  return NoteOn(first_layer, dense, "no tokens");
}

}  // namespace eplb
