// Ordered keys with values: what a store needs of a database. Implementations are SQLite, etcd
// (server/etcd) and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace eplb {

using Rows = std::map<std::string, std::string>;  // values by key

// Returns the first key after all keys that begin with `prefix`. REQUIRES: prefix is text, and not
// empty.
std::string EndOfPrefix(std::string prefix);

// Keys that begin with `prefix` and follow `after`, in their order or in the reverse of it.
struct KeyRange {
  std::string prefix;
  std::string after = {};  // empty: all keys
  bool reverse = false;
  bool with_values = true;  // false: the values are left empty
  int64_t limit = std::numeric_limits<int64_t>::max();
};

// A view of all keys at one moment. After a failure it returns nothing more, and status() has the
// failure; whoever gives out the reader checks it.
class KeyReader {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  virtual ~KeyReader() = default;
  virtual std::optional<std::string> Get(const std::string& key) const = 0;
  virtual Pairs Find(const KeyRange& range) const = 0;
  // Returns the number of keys that begin with `prefix`.
  virtual int64_t Count(const std::string& prefix) const = 0;
  virtual absl::Status status() const { return absl::OkStatus(); }
};

// Changes that happen all or not at all. No key is in a batch twice.
struct Batch {
  Rows puts = {};
  std::vector<std::string> deletes = {};
  std::vector<std::string> deleted_prefixes = {};  // all keys that begin with one of them
};
inline constexpr size_t kMaxOperations = 100;  // in a batch for etcd, which accepts 128

// threads: safe. errors: also Unavailable after Close.
class KeyValues {
 public:
  using Reads = std::function<void(const KeyReader& reader)>;
  // Returns the batches to write, one after the other.
  using Makes = std::function<std::vector<Batch>(const KeyReader& reader)>;

  virtual ~KeyValues() = default;
  // Calls `read`. errors: those of its reader.
  virtual absl::Status Read(const Reads& read) const = 0;
  // Writes the batches of `make`, which may be called again if the keys have changed meanwhile.
  // They are durable when it returns OK. errors: those of the reader; Unavailable while the
  // database takes no write.
  virtual absl::Status Write(const Makes& make) = 0;
  // See Store::CheckFile, Store::Close and Store::warning.
  virtual absl::Status Check() { return absl::OkStatus(); }
  virtual void Close() = 0;
  virtual std::string warning() const { return ""; }
};

// Reads `rows`, which outlives it.
class RowsReader : public KeyReader {
 public:
  explicit RowsReader(const Rows* rows) : rows_(*rows) {}
  std::optional<std::string> Get(const std::string& key) const override;
  Pairs Find(const KeyRange& range) const override;
  int64_t Count(const std::string& prefix) const override;

 private:
  const Rows& rows_;
};

// Applies the batch to `rows`.
void Apply(const Batch& batch, Rows* rows);

// Keys that end with the process, or a copy of keys that are elsewhere.
class MemoryKeyValues : public KeyValues {
 public:
  absl::Status Read(const Reads& read) const override;
  absl::Status Write(const Makes& make) override;
  void Close() override;

 protected:
  mutable std::mutex mutex_;  // guards what follows
  Rows rows_;
  bool open_ = true;
};

// Returns the error of every call after Close.
absl::Status StoreClosed();

}  // namespace eplb
