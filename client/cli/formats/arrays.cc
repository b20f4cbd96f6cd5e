#include "client/cli/formats/arrays.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"

#include "base/errors.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied without conversion");

constexpr int64_t kMaxNumbers = int64_t{1} << 28;

template <class Number, class To>
To NumberAt(const char* at) {
  Number number;
  std::memcpy(&number, at, sizeof(Number));
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here, and keeps its sign.
  return static_cast<To>(number);
}

template <class Number>
constexpr NumberType Integers(std::string_view numpy, std::string_view torch) {
  return {numpy, torch, sizeof(Number), &NumberAt<Number, int64_t>, nullptr};
}

template <class Number>
constexpr NumberType Reals(std::string_view numpy, std::string_view torch) {
  return {numpy, torch, sizeof(Number), nullptr, &NumberAt<Number, double>};
}

constexpr NumberType kNumberTypes[] = {Integers<int8_t>("|i1", "CharStorage"),
                                       Integers<uint8_t>("|u1", "ByteStorage"),
                                       Integers<int8_t>("<i1", ""),
                                       Integers<uint8_t>("<u1", ""),
                                       Integers<int16_t>("<i2", "ShortStorage"),
                                       Integers<uint16_t>("<u2", ""),
                                       Integers<int32_t>("<i4", "IntStorage"),
                                       Integers<uint32_t>("<u4", ""),
                                       Integers<int64_t>("<i8", "LongStorage"),
                                       Integers<uint64_t>("<u8", ""),
                                       Reals<float>("<f4", "FloatStorage"),
                                       Reals<double>("<f8", "DoubleStorage"),
                                       Reals<Eigen::half>("", "HalfStorage"),
                                       Reals<Eigen::bfloat16>("", "BFloat16Storage")};

template <class Matrix>
Matrix WindowMatrix(const Array& array, int64_t window,
                    typename Matrix::Scalar (*number)(const char* at)) {
  Matrix matrix(array.shape[1], array.shape[2]);
  for (int64_t layer = 0; layer < matrix.rows(); ++layer) {
    for (int64_t expert = 0; expert < matrix.cols(); ++expert) {
      matrix(layer, expert) = number(array.At(window, layer, expert));
    }
  }
  return matrix;
}

absl::StatusOr<Load> WindowLoad(const Array& array, int64_t window) {
  const NumberType& type = *array.type;
  if (type.integer == nullptr) {
    return Load::FromEstimates(WindowMatrix<RealMatrix>(array, window, type.real));
  }
  LoadMatrix counts = WindowMatrix<LoadMatrix>(array, window, type.integer);
  for (Eigen::Index i = 0; i < counts.size() && type.numpy == "<u8"; ++i) {
    if (counts.data()[i] >= 0) continue;
    return InvalidInput("layer ", i / counts.cols(), " expert ", i % counts.cols(), " is ",
                        static_cast<uint64_t>(counts.data()[i]), ", counts are at most 2^63-1");
  }
  return Load::FromCounts(std::move(counts));
}

}  // namespace

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data(), std::min(bytes.size(), sizeof(number)));
  return number;
}

const NumberType* FindNumberType(std::string_view NumberType::*library, std::string_view name) {
  const auto found = std::ranges::find_if(kNumberTypes, [library, name](const NumberType& type) {
    return type.*library == name && !name.empty();
  });
  return found == std::end(kNumberTypes) ? nullptr : found;
}

absl::StatusOr<int64_t> CountNumbers(const std::vector<int64_t>& shape) {
  int64_t numbers = 1;
  for (const int64_t size : shape) {
    if (size < 1) return InvalidInput("has a dimension of size ", size);
    if (size > kMaxNumbers / numbers) {
      return InvalidInput("claims ", absl::StrJoin(shape, " x "), " numbers, at most ", kMaxNumbers,
                          " are read");
    }
    numbers *= size;
  }
  return numbers;
}

absl::StatusOr<std::vector<LoadWindow>> LoadsFromArray(Array array) {
  if (array.shape.size() != 2 && array.shape.size() != 3) {
    return InvalidInput("has ", array.shape.size(),
                        " dimensions, expected [layers, experts] or [windows, layers, experts]");
  }
  if (array.shape.size() == 2) {
    array.shape.insert(array.shape.begin(), 1);
    array.strides.insert(array.strides.begin(), 0);
  }
  std::vector<LoadWindow> windows;
  for (int64_t window = 0; window < array.shape[0]; ++window) {
    absl::StatusOr<Load> load = WindowLoad(array, window);
    if (!load.ok()) {
      if (array.shape[0] == 1) return load.status();
      return InvalidInput("window ", window, ": ", load.status().message());
    }
    windows.push_back({window, window, *std::move(load)});
  }
  return windows;
}

}  // namespace eplb
