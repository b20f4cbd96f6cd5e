#include "server/store/large_values.h"

#include <iterator>
#include <utility>

#include "server/store/keys.h"

namespace eplb {

int64_t RemoveOthers(const KeyReader& reader, const std::string& prefix,
                     const std::set<std::string>& stay, Batch* batch) {
  int64_t written = 1;
  std::string key;
  for (const auto& [part, none] : reader.Find({.prefix = prefix, .with_values = false})) {
    if (WholeOf(part) == key) continue;
    key = WholeOf(part);
    written = NumberOf(key) + 1;
    if (std::ssize(batch->deleted_prefixes) >= kMaxTrimmed || stay.contains(key)) continue;
    batch->deleted_prefixes.push_back(key + "/");
  }
  return written;
}

void AddInParts(std::string_view prefix, int64_t written, const std::string& bytes,
                size_t part_bytes, std::vector<Batch>* before, Batch* batch) {
  for (size_t begin = 0, part = 0; begin < bytes.size(); ++part) {
    const std::string key = PartKey(prefix, written, part);
    std::string value = bytes.substr(begin, part_bytes);
    begin += value.size();
    if (begin == bytes.size()) {
      batch->puts[key] = std::move(value);
    } else {
      before->push_back({.puts = {{key, std::move(value)}}});
    }
  }
}

}  // namespace eplb
