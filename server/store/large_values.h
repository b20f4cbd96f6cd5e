// Values too large for one key, in parts under keys PREFIX WRITTEN/PART. A value whose last part is
// missing is of a write that did not end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/store/key_values.h"

namespace eplb {

inline constexpr int64_t kMaxTrimmed = 32;  // rows that one write removes beside those that it adds

// Returns the key of the value that a part belongs to, without the part.
inline std::string WholeOf(const std::string& part) { return part.substr(0, part.rfind('/')); }

// Deletes the values below `prefix` whose keys are not in `stay`. Returns the number of the next.
int64_t RemoveOthers(const KeyReader& reader, const std::string& prefix,
                     const std::set<std::string>& stay, Batch* batch);

// Adds the value in parts of at most `part_bytes`: the last one to `batch`, the others to batches
// before it.
void AddInParts(std::string_view prefix, int64_t written, const std::string& bytes,
                size_t part_bytes, std::vector<Batch>* before, Batch* batch);

}  // namespace eplb
