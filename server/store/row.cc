#include "server/store/row.h"

#include <bit>

#include "absl/strings/str_cat.h"

#include "placement/cost.h"
#include "placement/digest.h"
#include "placement/status_macros.h"

namespace eplb::sqlite {
namespace {

void Append(uint64_t number, std::string* out) {
  for (uint32_t shift = 0; shift < 64; shift += 8) {
    out->push_back(static_cast<char>((number >> shift) & 0xffU));
  }
}

void AppendText(const std::string& text, std::string* out) {
  Append(text.size(), out);
  out->append(text);
}

void Append(const Cell& cell, std::string* out) {
  out->push_back(static_cast<char>(cell.index()));
  if (const auto* integer = std::get_if<int64_t>(&cell)) {
    Append(static_cast<uint64_t>(*integer), out);
  } else if (const auto* real = std::get_if<double>(&cell)) {
    Append(std::bit_cast<uint64_t>(*real), out);
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    AppendText(*text, out);
  } else if (const auto* bytes = std::get_if<Bytes>(&cell)) {
    AppendText(bytes->bytes, out);
  }
}

void Bind(const Cell& cell, Statement& statement) {
  if (const auto* integer = std::get_if<int64_t>(&cell)) {
    statement.Bind(*integer);
  } else if (const auto* real = std::get_if<double>(&cell)) {
    statement.BindReal(*real);
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    statement.BindText(*text);
  } else if (const auto* bytes = std::get_if<Bytes>(&cell)) {
    statement.BindBytes(bytes->bytes);
  } else {
    statement.BindNull();
  }
}

Cell CellAt(const Statement& statement, int column) {
  switch (statement.Kind(column)) {
    case SQLITE_INTEGER:
      return statement.Integer(column);
    case SQLITE_FLOAT:
      return statement.Real(column);
    case SQLITE_TEXT:
      return statement.Bytes(column);
    case SQLITE_BLOB:
      return sqlite::Bytes{statement.Bytes(column)};
    default:
      return std::monostate();
  }
}

}  // namespace

int64_t ChecksumOf(std::span<const Cell> cells) {
  std::string bytes;
  for (const Cell& cell : cells) Append(cell, &bytes);
  return Sha256(bytes).VoteBits();
}

absl::Status Insert(Connection& connection, std::string_view table, std::string_view columns,
                    const Row& row, size_t first_checked) {
  std::string sql = absl::StrCat("INSERT OR REPLACE INTO ", std::string(table));
  if (!columns.empty()) absl::StrAppend(&sql, "(", std::string(columns), ")");
  absl::StrAppend(&sql, " VALUES (");
  for (size_t i = 0; i < row.size(); ++i) absl::StrAppend(&sql, "?, ");
  absl::StrAppend(&sql, "?)");
  EPLB_ASSIGN_OR_RETURN(Statement statement, connection.Prepare(sql));
  for (const Cell& cell : row) Bind(cell, statement);
  return statement.Bind(ChecksumOf(std::span<const Cell>(row).subspan(first_checked))).Run();
}

absl::Status ForEachRow(Statement statement, const std::string& what, size_t first_checked,
                        const std::function<absl::Status(const Row&)>& use) {
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool more, statement.Step());
    if (!more) return absl::OkStatus();
    const int checksum_column = statement.num_columns() - 1;
    Row row;
    for (int column = 0; column < checksum_column; ++column) {
      row.push_back(CellAt(statement, column));
    }
    const auto checked = std::span<const Cell>(row).subspan(first_checked);
    if (statement.Kind(checksum_column) != SQLITE_INTEGER ||
        statement.Integer(checksum_column) != ChecksumOf(checked)) {
      return absl::DataLossError(
          absl::StrCat(statement.path(), ": a row of ", what, " does not fit its checksum"));
    }
    EPLB_RETURN_IF_ERROR(use(row));
  }
}

Cell RealCell(double value) { return Finite(value) + 0.0; }

}  // namespace eplb::sqlite
