#include "client/files/npy_header.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"

#include "client/files/load_npy.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

constexpr size_t kMaxNpyDimensions = 8;
constexpr int64_t kMaxDimension = int64_t{1} << 31;

// Reads the Python dictionary {'descr': '<i8', 'fortran_order': False, 'shape': (3, 4), }.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : text_(text) {}

  absl::StatusOr<NpyHeader> Read() {
    if (!Take("{")) return Unexpected("{");
    while (!Take("}")) {
      EPLB_ASSIGN_OR_RETURN(const std::string key, Quoted());
      if (!Take(":")) return Unexpected(":");
      EPLB_RETURN_IF_ERROR(ReadValue(key));
      if (!Take(",") && Next() != '}') return Unexpected(", or }");
    }
    if (Next() != '\0') return Unexpected("the end");
    if (seen_.size() != 3) {
      return absl::InvalidArgumentError(
          "the header's dictionary lacks one of descr, fortran_order and shape");
    }
    return header_;
  }

 private:
  absl::Status ReadValue(const std::string& key) {
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the header gives ", key, " twice"));
    }
    seen_.push_back(key);
    if (key == "descr") {
      if (Next() == '[') return absl::InvalidArgumentError("is a structured array");
      EPLB_ASSIGN_OR_RETURN(header_.descr, Quoted());
      return absl::OkStatus();
    }
    if (key == "fortran_order") {
      header_.fortran_order = Take("True");
      return header_.fortran_order || Take("False") ? absl::OkStatus()
                                                    : Unexpected("True or False");
    }
    if (key == "shape") return ReadShape();
    return absl::InvalidArgumentError("the header's dictionary has an unknown key");
  }

  absl::Status ReadShape() {
    if (!Take("(")) return Unexpected("(");
    while (!Take(")")) {
      (void)Next();
      int64_t size = -1;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0 || size > kMaxDimension ||
          header_.shape.size() == kMaxNpyDimensions) {
        return absl::InvalidArgumentError("the header's shape has a dimension outside 0..2^31");
      }
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      header_.shape.push_back(size);
      if (!Take(",") && Next() != ')') return Unexpected(", or )");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Quoted() {
    const char quote = Next();
    if (quote != '\'' && quote != '"') return Unexpected("a quoted word");
    const size_t end = text_.find(quote, 1);
    if (end == std::string_view::npos || end > 32) return Unexpected("a short quoted word");
    const std::string word(text_.substr(1, end - 1));
    const bool printable =
        std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c <= '~'; });
    if (!printable) return Unexpected("printable words");
    text_.remove_prefix(end + 1);
    return word;
  }

  // The next character that is no space, NUL at the end.
  char Next() {
    const size_t start = std::min(text_.find_first_not_of(" \n\t"), text_.size());
    text_.remove_prefix(start);
    return text_.empty() ? '\0' : text_.front();
  }

  bool Take(std::string_view word) {
    (void)Next();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  static absl::Status Unexpected(const char* expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header is not numpy's dictionary: expected ", expected));
  }

  std::string_view text_;
  std::vector<std::string> seen_;
  NpyHeader header_;
};

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes) {
  if (!bytes.starts_with(kNpyMagic)) {
    return absl::InvalidArgumentError("does not begin with the magic of .npy");
  }
  auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  constexpr size_t kVersionAt = 6;
  constexpr size_t kLengthAt = 8;
  if (bytes.size() < kLengthAt + 4) return absl::InvalidArgumentError("truncated in the header");
  const int version = byte(kVersionAt);
  if (version < 1 || version > 3 || byte(kVersionAt + 1) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("has .npy version ", version, ".",
                                                   byte(kVersionAt + 1), ", expected 1.0 to 3.0"));
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{byte(kLengthAt + i)} << (8 * i);
  const size_t start = kLengthAt + length_bytes;
  if (length > bytes.size() - start) {
    return absl::InvalidArgumentError(absl::StrCat("truncated in the header: it claims ", length,
                                                   " bytes, ", bytes.size() - start, " follow"));
  }
  EPLB_ASSIGN_OR_RETURN(NpyHeader header, DictReader(bytes.substr(start, length)).Read());
  header.data_offset = start + length;
  return header;
}

}  // namespace eplb
