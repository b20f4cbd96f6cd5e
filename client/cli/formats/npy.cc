#include "client/cli/formats/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/status_macros.h"

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
      return InvalidInput("the header's dictionary lacks one of descr, fortran_order and shape");
    }
    return header_;
  }

 private:
  absl::Status ReadValue(const std::string& key) {
    if (std::ranges::find(seen_, key) != seen_.end()) {
      return InvalidInput("the header gives ", key, " twice");
    }
    seen_.push_back(key);
    if (key == "descr") {
      if (Next() == '[') return InvalidInput("is a structured array");
      EPLB_ASSIGN_OR_RETURN(header_.descr, Quoted());
      return absl::OkStatus();
    }
    if (key == "fortran_order") {
      header_.fortran_order = Take("True");
      return header_.fortran_order || Take("False") ? absl::OkStatus()
                                                    : Unexpected("True or False");
    }
    if (key == "shape") return ReadShape();
    return InvalidInput("the header's dictionary has an unknown key");
  }

  absl::Status ReadShape() {
    if (!Take("(")) return Unexpected("(");
    while (!Take(")")) {
      (void)Next();
      int64_t size = -1;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0 || size > kMaxDimension ||
          header_.shape.size() == kMaxNpyDimensions) {
        return InvalidInput("the header's shape has a dimension outside 0..2^31");
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
    const bool printable = std::ranges::all_of(word, [](char c) { return c > ' ' && c <= '~'; });
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
    return InvalidInput("the header is not numpy's dictionary: expected ", expected);
  }

  std::string_view text_;
  std::vector<std::string> seen_;
  NpyHeader header_;
};

static_assert(std::endian::native == std::endian::little, "numbers are copied without conversion");

constexpr int64_t kMaxCells = int64_t{1} << 28;

// An array of three dimensions, and the place of each of its numbers.
struct Layout {
  int64_t size[3] = {1, 1, 1};
  bool fortran_order = false;

  int64_t IndexOf(int64_t i, int64_t j, int64_t k) const {
    return fortran_order ? i + size[0] * (j + size[1] * k) : (i * size[1] + j) * size[2] + k;
  }
  int64_t num_cells() const { return size[0] * size[1] * size[2]; }
};

// first: the dimension of `layout` that is the first one of the file; those outside the file are 1.
absl::StatusOr<Layout> LayoutOf(const NpyHeader& header, size_t first) {
  Layout layout{.fortran_order = header.fortran_order};
  int64_t cells = 1;
  for (size_t i = 0; i < header.shape.size(); ++i) {
    const int64_t size = header.shape[i];
    if (size < 1) return InvalidInput("has a dimension of size 0");
    if (size > kMaxCells / cells) {
      return InvalidInput("claims ", absl::StrJoin(header.shape, " x "), " numbers, at most ",
                          kMaxCells, " are read");
    }
    cells *= size;
    layout.size[first + i] = size;
  }
  return layout;
}

// The data is not aligned.
template <class Number>
Number NumberAt(const char* data, int64_t index) {
  Number number;
  std::memcpy(&number, data + static_cast<size_t>(index) * sizeof(Number), sizeof(Number));
  return number;
}

template <class Number>
int64_t IntegerAt(const char* data, int64_t index) {
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here, and keeps its sign.
  return static_cast<int64_t>(NumberAt<Number>(data, index));
}

template <class Number, class Matrix>
Matrix WindowMatrix(const char* data, const Layout& layout, int64_t window) {
  Matrix matrix(layout.size[1], layout.size[2]);
  for (int64_t layer = 0; layer < layout.size[1]; ++layer) {
    for (int64_t expert = 0; expert < layout.size[2]; ++expert) {
      const int64_t index = layout.IndexOf(window, layer, expert);
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here, and keeps its sign.
      matrix(layer, expert) = static_cast<typename Matrix::Scalar>(NumberAt<Number>(data, index));
    }
  }
  return matrix;
}

template <class Number>
absl::StatusOr<Load> WindowLoad(const char* data, const Layout& layout, int64_t window) {
  if constexpr (std::is_floating_point_v<Number>) {
    return Load::FromEstimates(WindowMatrix<Number, RealMatrix>(data, layout, window));
  } else {
    LoadMatrix counts = WindowMatrix<Number, LoadMatrix>(data, layout, window);
    if constexpr (std::is_same_v<Number, uint64_t>) {
      // A uint64 above 2^63-1 came out negative.
      for (Eigen::Index i = 0; i < counts.size(); ++i) {
        if (counts.data()[i] >= 0) continue;
        return InvalidInput("layer ", i / counts.cols(), " expert ", i % counts.cols(), " is ",
                            static_cast<uint64_t>(counts.data()[i]), ", counts are at most 2^63-1");
      }
    }
    return Load::FromCounts(std::move(counts));
  }
}

struct NumberType {
  std::string_view descr;
  int64_t size;
  absl::StatusOr<Load> (*load)(const char* data, const Layout& layout, int64_t window);
  int64_t (*integer)(const char* data, int64_t index);  // null for a type with fractions
};

template <class Number>
constexpr NumberType Integers(std::string_view descr) {
  return {descr, sizeof(Number), &WindowLoad<Number>, &IntegerAt<Number>};
}

constexpr NumberType kNumberTypes[] = {Integers<int8_t>("|i1"),
                                       Integers<uint8_t>("|u1"),
                                       Integers<int8_t>("<i1"),
                                       Integers<uint8_t>("<u1"),
                                       Integers<int16_t>("<i2"),
                                       Integers<uint16_t>("<u2"),
                                       Integers<int32_t>("<i4"),
                                       Integers<uint32_t>("<u4"),
                                       Integers<int64_t>("<i8"),
                                       Integers<uint64_t>("<u8"),
                                       {"<f4", 4, &WindowLoad<float>, nullptr},
                                       {"<f8", 8, &WindowLoad<double>, nullptr}};

const NumberType* FindType(const std::string& descr) {
  const auto found = std::ranges::find_if(
      kNumberTypes, [&descr](const NumberType& type) { return type.descr == descr; });
  return found == std::end(kNumberTypes) ? nullptr : found;
}

absl::Status WrongType(const std::string& descr) {
  const char* why = "";
  if (descr.ends_with("f2")) why = " (float16 cannot hold counts above 2048 exactly)";
  if (descr.starts_with(">")) why = " (big endian)";
  if (descr.ends_with("O")) why = " (a pickle)";
  return InvalidInput("has the dtype ", descr, why,
                      ", expected a little-endian int8..int64, uint8..uint64, float32 or float64");
}

absl::Status CheckSize(std::string_view data, const Layout& layout, const NumberType& type) {
  const auto size = std::ssize(data);
  const int64_t expected = layout.num_cells() * type.size;
  if (size == expected) return absl::OkStatus();
  return InvalidInput(size < expected ? "truncated: " : "too long: ", "has ", size,
                      " bytes of numbers, the header claims ", expected);
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes) {
  if (!bytes.starts_with(kNpyMagic)) return InvalidInput("does not begin with the magic of .npy");
  auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  constexpr size_t kVersionAt = 6;
  constexpr size_t kLengthAt = 8;
  if (bytes.size() < kLengthAt + 4) return InvalidInput("truncated in the header");
  const int version = byte(kVersionAt);
  if (version < 1 || version > 3 || byte(kVersionAt + 1) != 0) {
    return InvalidInput("has .npy version ", version, ".", byte(kVersionAt + 1),
                        ", expected 1.0 to 3.0");
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{byte(kLengthAt + i)} << (8 * i);
  const size_t start = kLengthAt + length_bytes;
  if (length > bytes.size() - start) {
    return InvalidInput("truncated in the header: it claims ", length, " bytes, ",
                        bytes.size() - start, " follow");
  }
  EPLB_ASSIGN_OR_RETURN(NpyHeader header, DictReader(bytes.substr(start, length)).Read());
  header.data_offset = start + length;
  return header;
}

absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(bytes));
  const NumberType* const type = FindType(header.descr);
  if (type == nullptr) return WrongType(header.descr);
  if (header.shape.size() != 2 && header.shape.size() != 3) {
    return InvalidInput("has ", header.shape.size(),
                        " dimensions, expected [layers, experts] or [windows, layers, experts]");
  }
  EPLB_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(header, 3 - header.shape.size()));
  const std::string_view data = bytes.substr(header.data_offset);
  EPLB_RETURN_IF_ERROR(CheckSize(data, layout, *type));
  std::vector<LoadWindow> windows;
  for (int64_t window = 0; window < layout.size[0]; ++window) {
    absl::StatusOr<Load> load = type->load(data.data(), layout, window);
    if (!load.ok()) {
      if (layout.size[0] == 1) return load.status();
      return InvalidInput("window ", window, ": ", load.status().message());
    }
    windows.push_back({window, window, *std::move(load)});
  }
  return windows;
}

absl::StatusOr<NpyIntegers> ParseNpyIntegers(std::string_view bytes, size_t dimensions) {
  EPLB_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(bytes));
  const NumberType* const type = FindType(header.descr);
  if (type == nullptr || type->integer == nullptr) {
    return InvalidInput("has the dtype ", header.descr,
                        ", expected little-endian integers, int8..int64 or uint8..uint64");
  }
  if (header.shape.size() != dimensions) {
    return InvalidInput("has ", header.shape.size(), " dimensions, expected ", dimensions);
  }
  EPLB_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(header, 0));
  const std::string_view data = bytes.substr(header.data_offset);
  EPLB_RETURN_IF_ERROR(CheckSize(data, layout, *type));
  return NpyIntegers{.rows = layout.size[0],
                     .columns = layout.size[1],
                     .depth = layout.size[2],
                     .at = [layout, type, start = data.data()](int64_t i, int64_t j, int64_t k) {
                       return type->integer(start, layout.IndexOf(i, j, k));
                     }};
}

}  // namespace eplb
