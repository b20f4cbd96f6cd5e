#include "client/files/load_npy.h"

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/files/npy_header.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

constexpr int64_t kMaxCells = int64_t{1} << 28;

// Where cell (window, layer, expert) lies, in numbers from the first.
struct Layout {
  int64_t windows = 1;
  int64_t layers = 0;
  int64_t experts = 0;
  int64_t window_stride = 0;
  int64_t layer_stride = 0;
  int64_t expert_stride = 0;
};

absl::StatusOr<Layout> LayoutOf(const NpyHeader& header) {
  const std::vector<int64_t>& shape = header.shape;
  if (shape.size() != 2 && shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", shape.size(),
                     " dimensions, expected [layers, experts] or [windows, layers, experts]"));
  }
  Layout layout{.windows = shape.size() == 3 ? shape[0] : 1,
                .layers = shape[shape.size() - 2],
                .experts = shape[shape.size() - 1]};
  int64_t cells = 1;
  for (const int64_t size : {layout.windows, layout.layers, layout.experts}) {
    if (size < 1) return absl::InvalidArgumentError("has a dimension of size 0");
    if (size > kMaxCells / cells) {
      return absl::InvalidArgumentError(absl::StrCat("claims ", layout.windows, " x ",
                                                     layout.layers, " x ", layout.experts,
                                                     " numbers, at most ", kMaxCells, " are read"));
    }
    cells *= size;
  }
  if (header.fortran_order) {
    layout.window_stride = 1;
    layout.layer_stride = layout.windows;
    layout.expert_stride = layout.windows * layout.layers;
  } else {
    layout.window_stride = layout.layers * layout.experts;
    layout.layer_stride = layout.experts;
    layout.expert_stride = 1;
  }
  return layout;
}

template <class Number, class Matrix>
Matrix WindowMatrix(const char* data, const Layout& layout, int64_t window) {
  Matrix matrix(layout.layers, layout.experts);
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t expert = 0; expert < layout.experts; ++expert) {
      const int64_t index = window * layout.window_stride + layer * layout.layer_stride +
                            expert * layout.expert_stride;
      Number number;  // the data is not aligned
      std::memcpy(&number, data + static_cast<size_t>(index) * sizeof(Number), sizeof(Number));
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here, and keeps its sign.
      matrix(layer, expert) = static_cast<typename Matrix::Scalar>(number);
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
        return absl::InvalidArgumentError(
            absl::StrCat("layer ", i / counts.cols(), " expert ", i % counts.cols(), " is ",
                         static_cast<uint64_t>(counts.data()[i]), ", counts are at most 2^63-1"));
      }
    }
    return Load::FromCounts(std::move(counts));
  }
}

struct NumberType {
  std::string_view descr;
  int64_t size;
  absl::StatusOr<Load> (*load)(const char* data, const Layout& layout, int64_t window);
};

constexpr NumberType kNumberTypes[] = {
    {"|i1", 1, &WindowLoad<int8_t>},  {"|u1", 1, &WindowLoad<uint8_t>},
    {"<i1", 1, &WindowLoad<int8_t>},  {"<u1", 1, &WindowLoad<uint8_t>},
    {"<i2", 2, &WindowLoad<int16_t>}, {"<u2", 2, &WindowLoad<uint16_t>},
    {"<i4", 4, &WindowLoad<int32_t>}, {"<u4", 4, &WindowLoad<uint32_t>},
    {"<i8", 8, &WindowLoad<int64_t>}, {"<u8", 8, &WindowLoad<uint64_t>},
    {"<f4", 4, &WindowLoad<float>},   {"<f8", 8, &WindowLoad<double>},
};

absl::StatusOr<NumberType> FindType(const std::string& descr) {
  for (const NumberType& type : kNumberTypes) {
    if (type.descr == descr) return type;
  }
  const char* why = "";
  if (descr.ends_with("f2")) why = " (float16 cannot hold counts above 2048 exactly)";
  if (descr.starts_with(">")) why = " (big endian)";
  if (descr.ends_with("O")) why = " (a pickle)";
  return absl::InvalidArgumentError(
      absl::StrCat("has the dtype ", descr, why,
                   ", expected a little-endian int8..int64, uint8..uint64, float32 or float64"));
}

}  // namespace

absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(bytes));
  EPLB_ASSIGN_OR_RETURN(const NumberType type, FindType(header.descr));
  EPLB_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(header));
  const std::string_view data = bytes.substr(header.data_offset);
  const int64_t expected = layout.windows * layout.layers * layout.experts * type.size;
  if (static_cast<int64_t>(data.size()) != expected) {
    const bool shorter = static_cast<int64_t>(data.size()) < expected;
    return absl::InvalidArgumentError(
        absl::StrCat(shorter ? "truncated: " : "too long: ", "has ", data.size(),
                     " bytes of numbers, the header claims ", expected));
  }
  std::vector<LoadWindow> windows;
  for (int64_t window = 0; window < layout.windows; ++window) {
    absl::StatusOr<Load> load = type.load(data.data(), layout, window);
    if (!load.ok()) {
      if (layout.windows == 1) return load.status();
      return absl::InvalidArgumentError(
          absl::StrCat("window ", window, ": ", load.status().message()));
    }
    windows.push_back({window, window, *std::move(load)});
  }
  return windows;
}

}  // namespace eplb
