#include "proto/wire/report_counts.h"

#include <cstring>

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

}  // namespace

int32_t NumLayers(const LoadReport& report) {
  return report.packed.cells.empty() ? static_cast<int32_t>(report.counts.rows())
                                     : report.packed.num_layers;
}

int32_t NumExperts(const LoadReport& report) {
  return report.packed.cells.empty() ? static_cast<int32_t>(report.counts.cols())
                                     : report.packed.num_experts;
}

size_t CountBytes(const LoadReport& report) {
  return report.packed.cells.size() + static_cast<size_t>(report.counts.size()) * sizeof(int64_t);
}

int64_t LeastCount(const LoadReport& report) {
  return report.counts.size() == 0 ? 0 : report.counts.minCoeff();
}

LoadMatrix CountsOf(const LoadReport& report) {
  if (report.packed.cells.empty()) return report.counts;
  LoadMatrix counts = LoadMatrix::Zero(NumLayers(report), NumExperts(report));
  (void)AddCounts(report, &counts);  // a u32 fits
  return counts;
}

bool AddCounts(const LoadReport& report, LoadMatrix* sum) {
  if (!report.packed.cells.empty()) {
    return AddCells<uint32_t>(report.packed.cells.data(), sum->size(), sum->data());
  }
  return AddCells<int64_t>(reinterpret_cast<const char*>(report.counts.data()), sum->size(),
                           sum->data());
}

}  // namespace eplb::wire
