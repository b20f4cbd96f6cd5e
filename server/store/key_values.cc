// Keys in a map: ranges, batches, and the database that ends with the process.
#include "server/store/key_values.h"

#include <iterator>

namespace eplb {
namespace {

using Range = std::pair<Rows::const_iterator, Rows::const_iterator>;

Range With(const Rows& rows, const std::string& prefix) {
  return {rows.lower_bound(prefix), rows.lower_bound(EndOfPrefix(prefix))};
}

}  // namespace

std::string EndOfPrefix(std::string prefix) {
  // Prefixes are text, so the last byte can be raised.
  ++prefix.back();
  return prefix;
}

absl::Status StoreClosed() { return absl::UnavailableError("the store is closed"); }

std::optional<std::string> RowsReader::Get(const std::string& key) const {
  const auto found = rows_.find(key);
  return found == rows_.end() ? std::nullopt : std::optional(found->second);
}

KeyReader::Pairs RowsReader::Find(const KeyRange& range) const {
  auto [first, last] = With(rows_, range.prefix);
  if (range.after > range.prefix) first = rows_.upper_bound(range.after);
  if (range.after >= EndOfPrefix(range.prefix)) return Pairs();
  Pairs found;
  const auto take = [&](auto from, auto to) {
    for (; from != to && std::ssize(found) < range.limit; ++from) {
      found.emplace_back(from->first, range.with_values ? from->second : "");
    }
  };
  if (range.reverse) {
    take(std::make_reverse_iterator(last), std::make_reverse_iterator(first));
  } else {
    take(first, last);
  }
  return found;
}

int64_t RowsReader::Count(const std::string& prefix) const {
  const auto [first, last] = With(rows_, prefix);
  return std::distance(first, last);
}

void Apply(const Batch& batch, Rows* rows) {
  for (const std::string& prefix : batch.deleted_prefixes) {
    const auto [first, last] = With(*rows, prefix);
    rows->erase(first, last);
  }
  for (const std::string& key : batch.deletes) rows->erase(key);
  for (const auto& [key, value] : batch.puts) rows->insert_or_assign(key, value);
}

absl::Status MemoryKeyValues::Read(const Reads& read) const {
  const std::lock_guard lock(mutex_);
  if (!open_) return StoreClosed();
  read(RowsReader(&rows_));
  return absl::OkStatus();
}

absl::Status MemoryKeyValues::Write(const Makes& make) {
  const std::lock_guard lock(mutex_);
  if (!open_) return StoreClosed();
  for (const Batch& batch : make(RowsReader(&rows_))) Apply(batch, &rows_);
  return absl::OkStatus();
}

void MemoryKeyValues::Close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
}

}  // namespace eplb
