// Checksums of rows, and their form as bytes: for each cell its kind, then its number or its length
// and bytes; then the checksum.
#include "server/store/checked_rows.h"

#include <optional>

#include "base/errors.h"
#include "placement/digest.h"

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
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    AppendText(*text, out);
  } else if (const auto* bytes = std::get_if<Bytes>(&cell)) {
    AppendText(bytes->bytes, out);
  }
}

constexpr size_t kNumberBytes = 8;

std::optional<uint64_t> TakeNumber(std::string_view* bytes) {
  if (bytes->size() < kNumberBytes) return std::nullopt;
  uint64_t number = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    number |= uint64_t{static_cast<uint8_t>((*bytes)[i])} << (8 * i);
  }
  bytes->remove_prefix(kNumberBytes);
  return number;
}

std::optional<std::string> TakeText(std::string_view* bytes) {
  const std::optional<uint64_t> size = TakeNumber(bytes);
  if (!size || *size > bytes->size()) return std::nullopt;
  std::string text(bytes->substr(0, *size));
  bytes->remove_prefix(*size);
  return text;
}

// REQUIRES: bytes are left.
std::optional<Cell> TakeCell(std::string_view* bytes) {
  const auto kind = static_cast<size_t>(static_cast<unsigned char>(bytes->front()));
  bytes->remove_prefix(1);
  if (kind == Cell().index()) return Cell();
  if (kind == Cell(int64_t{}).index()) {
    const std::optional<uint64_t> number = TakeNumber(bytes);
    if (!number) return std::nullopt;
    return Cell(static_cast<int64_t>(*number));
  }
  std::optional<std::string> text = TakeText(bytes);
  if (!text) return std::nullopt;
  if (kind == Cell(std::string()).index()) return Cell(*std::move(text));
  if (kind == Cell(Bytes{}).index()) return Cell(Bytes{*std::move(text)});
  return std::nullopt;
}

}  // namespace

int64_t ChecksumOf(std::span<const Cell> cells) {
  std::string bytes;
  for (const Cell& cell : cells) Append(cell, &bytes);
  return Sha256(bytes).VoteBits();
}

std::string RowToBytes(const Row& row) {
  std::string bytes;
  for (const Cell& cell : row) Append(cell, &bytes);
  Append(static_cast<uint64_t>(Sha256(bytes).VoteBits()), &bytes);
  return bytes;
}

absl::StatusOr<Row> RowFromBytes(std::string_view bytes, const std::string& what) {
  const absl::Status damaged = DataLoss(what, " does not fit its checksum");
  if (bytes.size() < kNumberBytes) return damaged;
  const std::string_view cells = bytes.substr(0, bytes.size() - kNumberBytes);
  std::string_view rest = bytes.substr(cells.size());
  const std::optional<uint64_t> checksum = TakeNumber(&rest);
  const Digest digest = Sha256({cells.data(), cells.size()});
  if (*checksum != static_cast<uint64_t>(digest.VoteBits())) return damaged;
  Row row;
  for (rest = cells; !rest.empty();) {
    std::optional<Cell> cell = TakeCell(&rest);
    if (!cell) return DataLoss(what, " has an unknown format");
    row.push_back(*std::move(cell));
  }
  return row;
}

}  // namespace eplb::sqlite
