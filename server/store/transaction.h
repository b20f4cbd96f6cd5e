// One transaction of a connection.
#ifndef EPLB_SERVER_STORE_TRANSACTION_H_
#define EPLB_SERVER_STORE_TRANSACTION_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/status_macros.h"
#include "server/store/sqlite.h"

namespace eplb::sqlite {

// Taken back when it ends without a Commit that is OK. `connection` outlives it.
class Transaction {
 public:
  static absl::StatusOr<Transaction> Begin(Connection* connection) {
    EPLB_RETURN_IF_ERROR(connection->Execute("BEGIN IMMEDIATE"));
    return Transaction(connection);
  }
  Transaction(Transaction&& other) noexcept
      : connection_(std::exchange(other.connection_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction() {
    if (connection_ != nullptr) (void)connection_->Execute("ROLLBACK");
  }

  absl::Status Commit() {
    EPLB_RETURN_IF_ERROR(connection_->Execute("COMMIT"));
    connection_ = nullptr;
    return absl::OkStatus();
  }

 private:
  explicit Transaction(Connection* connection) : connection_(connection) {}
  Connection* connection_;
};

}  // namespace eplb::sqlite

#endif  // EPLB_SERVER_STORE_TRANSACTION_H_
