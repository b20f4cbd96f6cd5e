// All rows of the daemon that leads, in memory and in etcd: every write is refused once another
// daemon leads, and writes never change their order.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/etcd/client.h"
#include "server/etcd/election.h"
#include "server/store/key_values.h"

namespace eplb::etcd {

struct FencedRowsOptions {
  Client* client = nullptr;  // outlives the rows
  std::string prefix;        // begin of all keys, without the last slash
  Fence fence;
  // OK while a write may be made, and until when; see Election.
  std::function<absl::Status()> may_write = [] { return absl::OkStatus(); };
  std::function<absl::Time()> write_until = [] { return absl::InfiniteFuture(); };
  // Called, perhaps several times, when etcd refuses a write because another daemon leads.
  std::function<void(const std::string& why)> lost = [](const std::string&) {};
};

// Beside the rows of the store there are below the prefix the leader's key, knock/ADDRESS (see
// Election), and `serial`, which every write compares and changes. threads: safe.
class FencedRows : public MemoryKeyValues {
 public:
  explicit FencedRows(FencedRowsOptions options) : options_(std::move(options)) {}

  // Reads all rows. errors: those of Client.
  absl::Status Load();
  // The batches become one transaction each. `make` is called again when an earlier write that etcd
  // had not answered turns out to have happened. errors: Unavailable when etcd does not answer
  // within seconds, and for a moment afterwards; then the write may have happened, and the next one
  // learns first whether it did.
  absl::Status Write(const Makes& make) override;
  absl::Status Check() override { return options_.may_write(); }
  void Close() override;
  std::string warning() const override { return options_.client->Trouble(); }

 private:
  // All that follow: REQUIRES writing_, which is held while etcd is waited for.
  absl::Status ReadRows();
  // False when a write of ours came between that was not answered, and is known now.
  absl::StatusOr<bool> Attempt(const Batch& batch, absl::Time deadline);
  absl::StatusOr<bool> AttemptAll(const Makes& make, absl::Time deadline);
  absl::Status Settle(absl::Time deadline);
  absl::Status OtherLeads(const std::string& address);
  pb::TxnRequest TransactionOf(const Batch& batch) const;
  std::string Absolute(const std::string& key) const { return options_.prefix + "/" + key; }

  const FencedRowsOptions options_;

  std::mutex writing_;  // guards what follows; the keys change only while it and mutex_ are held
  int64_t serial_revision_ = 0;  // revision of the key `serial`; 0: it is not there
  bool unsure_ = false;          // a write was not answered: it may have happened, or may yet
  absl::Time refuse_until_ = absl::InfinitePast();
  absl::Status refused_;
};

}  // namespace eplb::etcd
