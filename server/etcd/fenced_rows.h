// All rows of the daemon that leads, in memory and in etcd: every write is refused once another
// daemon leads, and writes never change their order.
#ifndef EPLB_SERVER_ETCD_FENCED_ROWS_H_
#define EPLB_SERVER_ETCD_FENCED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/etcd/client.h"
#include "server/etcd/election.h"

namespace eplb::etcd {

using Rows = std::map<std::string, std::string>;  // key below the prefix, value

// The rows whose keys begin with `prefix`, in order.
std::pair<Rows::const_iterator, Rows::const_iterator> With(const Rows& rows,
                                                           const std::string& prefix);

// One transaction. No key is in it twice.
struct Batch {
  Rows puts = {};
  std::vector<std::string> deletes = {};
  std::vector<std::string> deleted_prefixes = {};  // all rows below each
};
inline constexpr size_t kMaxOperations = 100;  // of a batch; etcd takes 128

struct FencedRowsOptions {
  Client* client = nullptr;  // outlives the rows
  std::string prefix;        // of all keys, without the last slash
  Fence fence;
  // OK while a write may be made, and until when; see Election.
  std::function<absl::Status()> may_write = [] { return absl::OkStatus(); };
  std::function<absl::Time()> write_until = [] { return absl::InfiniteFuture(); };
  // Called, perhaps several times, when etcd refuses a write because another daemon leads.
  std::function<void(const std::string& why)> lost = [](const std::string&) {};
};

// Beside the rows of the store there are below the prefix the leader's key, knock/ADDRESS (see
// Election), and `serial`, which every write compares and changes. threads: safe.
class FencedRows {
 public:
  explicit FencedRows(FencedRowsOptions options) : options_(std::move(options)) {}

  // Reads all rows. errors: those of Client.
  absl::Status Load();
  // Returns the result of `read`, which is a Status or a StatusOr. It never waits for etcd. errors:
  // Unavailable after Close, and those of `read`.
  template <class F>
  std::invoke_result_t<F, const Rows&> Read(const F& read) const {
    const std::lock_guard lock(rows_mutex_);
    if (!open_) return Closed();
    return read(rows_);
  }
  // Writes the batches that `make` gives for the rows, one after the other. make: asked again when
  // an earlier write that etcd had not answered turns out to have happened. errors: Unavailable
  // when etcd does not answer within seconds, and for a moment afterwards; then the write may have
  // happened, and the next one learns first whether it did.
  absl::Status Write(const std::function<std::vector<Batch>(const Rows& rows)>& make);
  void Close();

 private:
  static absl::Status Closed();
  // All that follow: REQUIRES writing_, which is held while etcd is waited for.
  absl::Status ReadRows();
  // False when a write of ours came between that was not answered, and is known now.
  absl::StatusOr<bool> Attempt(const Batch& batch, absl::Time deadline);
  absl::StatusOr<bool> AttemptAll(const std::function<std::vector<Batch>(const Rows&)>& make,
                                  absl::Time deadline);
  absl::Status Settle(absl::Time deadline);
  absl::Status OtherLeads(const std::string& address);
  pb::TxnRequest TransactionOf(const Batch& batch) const;
  std::string Absolute(const std::string& key) const { return options_.prefix + "/" + key; }

  const FencedRowsOptions options_;

  std::mutex writing_;           // guards what follows
  int64_t serial_revision_ = 0;  // of the key `serial`; 0: it is not there
  bool unsure_ = false;          // a write was not answered: it may have happened, or may yet
  absl::Time refuse_until_ = absl::InfinitePast();
  absl::Status refused_;

  mutable std::mutex rows_mutex_;  // guards what follows; who changes them holds writing_ too
  Rows rows_;                      // what etcd holds
  bool open_ = true;
};

}  // namespace eplb::etcd

#endif  // EPLB_SERVER_ETCD_FENCED_ROWS_H_
