#include "proto/wire/report_counts.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace eplb::wire {
namespace {

// Two cells that are >= 0 cannot wrap around in 64 bits; the top bit says that their sum left
// int64. No branch inside the loop, so that it becomes vector code.
template <class Cell>
bool AddCells(const char* cells, int64_t num_cells, int64_t* sum) {
  uint64_t all_bits = 0;
  for (int64_t i = 0; i < num_cells; ++i) {
    Cell cell;
    std::memcpy(&cell, cells + static_cast<size_t>(i) * sizeof(Cell), sizeof(Cell));
    const uint64_t added = static_cast<uint64_t>(sum[i]) + static_cast<uint64_t>(cell);
    all_bits |= added;
    sum[i] = static_cast<int64_t>(added);
  }
  return (all_bits >> 63) == 0;
}

// The same for a whole report and for a part of it.
template <class Counted>
int32_t NumLayersOf(const Counted& counted) {
  return counted.packed.cells.empty() ? static_cast<int32_t>(counted.counts.rows())
                                      : counted.packed.num_layers;
}

template <class Counted>
int32_t NumExpertsOf(const Counted& counted) {
  return counted.packed.cells.empty() ? static_cast<int32_t>(counted.counts.cols())
                                      : counted.packed.num_experts;
}

template <class Counted>
size_t BytesOf(const Counted& counted) {
  return counted.packed.cells.size() + static_cast<size_t>(counted.counts.size()) * sizeof(int64_t);
}

template <class Counted>
int64_t LeastOf(const Counted& counted) {
  return counted.counts.size() == 0 ? 0 : counted.counts.minCoeff();
}

template <class Counted>
bool AddTo(const Counted& counted, LoadMatrix* sum) {
  if (!counted.packed.cells.empty()) {
    return AddCells<uint32_t>(counted.packed.cells.data(), sum->size(), sum->data());
  }
  return AddCells<int64_t>(reinterpret_cast<const char*>(counted.counts.data()), sum->size(),
                           sum->data());
}

template <class Counted>
LoadMatrix Unpacked(const Counted& counted) {
  if (counted.packed.cells.empty()) return counted.counts;
  LoadMatrix counts = LoadMatrix::Zero(NumLayersOf(counted), NumExpertsOf(counted));
  (void)AddTo(counted, &counts);  // a u32 fits
  return counts;
}

}  // namespace

int32_t NumLayers(const LoadReport& report) { return NumLayersOf(report); }
int32_t NumLayers(const LoadPart& part) { return NumLayersOf(part); }
int32_t NumExperts(const LoadReport& report) { return NumExpertsOf(report); }
int32_t NumExperts(const LoadPart& part) { return NumExpertsOf(part); }

size_t CountBytes(const LoadReport& report) {
  size_t bytes = BytesOf(report);
  for (const LoadPart& part : report.earlier) bytes += BytesOf(part);
  return bytes;
}

int64_t LeastCount(const LoadReport& report) { return LeastOf(report); }
int64_t LeastCount(const LoadPart& part) { return LeastOf(part); }

bool HasTokens(const LoadReport& report, int32_t layer) {
  if (report.packed.cells.empty()) return (report.counts.row(layer) > 0).any();
  const size_t bytes = static_cast<size_t>(report.packed.num_experts) * sizeof(uint32_t);
  const std::string_view row(report.packed.cells.data() + static_cast<size_t>(layer) * bytes,
                             bytes);
  return std::ranges::any_of(row, [](char byte) { return byte != 0; });
}

LoadMatrix CountsOf(const LoadReport& report) { return Unpacked(report); }
LoadMatrix CountsOf(const LoadPart& part) { return Unpacked(part); }

bool AddCounts(const LoadReport& report, LoadMatrix* sum) { return AddTo(report, sum); }
bool AddCounts(const LoadPart& part, LoadMatrix* sum) { return AddTo(part, sum); }

}  // namespace eplb::wire
