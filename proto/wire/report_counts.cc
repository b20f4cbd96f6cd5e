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

template <class Counted>
size_t BytesOf(const Counted& counted) {
  return counted.packed.cells.size() + static_cast<size_t>(counted.counts.size()) * sizeof(int64_t);
}

template <class Counted>
bool AddTo(const Counted& counted, LoadMatrix* sum) {
  if (!counted.packed.cells.empty()) {
    return AddCells<uint32_t>(counted.packed.cells.data(), sum->size(), sum->data());
  }
  return AddCells<int64_t>(reinterpret_cast<const char*>(counted.counts.data()), sum->size(),
                           sum->data());
}

}  // namespace

size_t CountBytes(const LoadReport& report) {
  size_t bytes = BytesOf(report);
  for (const LoadPart& part : report.earlier) bytes += BytesOf(part);
  return bytes;
}

bool HasTokens(const LoadReport& report, int32_t layer) {
  if (report.packed.cells.empty()) return (report.counts.row(layer) > 0).any();
  const size_t bytes = static_cast<size_t>(report.packed.num_experts) * sizeof(uint32_t);
  const std::string_view row(report.packed.cells.data() + static_cast<size_t>(layer) * bytes,
                             bytes);
  return std::ranges::any_of(row, [](char byte) { return byte != 0; });
}

bool AddCounts(const LoadReport& report, LoadMatrix* sum) { return AddTo(report, sum); }
bool AddCounts(const LoadPart& part, LoadMatrix* sum) { return AddTo(part, sum); }

}  // namespace eplb::wire
