// All that differs between libpqxx 6.4 and 7.10 for this program.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_PQXX_COMPAT_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_PQXX_COMPAT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <pqxx/pqxx>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define IDEMPOTENCY_PQXX_AT_LEAST(major, minor) \
  (PQXX_VERSION_MAJOR > (major) ||              \
   (PQXX_VERSION_MAJOR == (major) && PQXX_VERSION_MINOR >= (minor)))

namespace idempotency::pqxx_compat {

using NoticeHandler = std::function<void(std::string_view)>;

#if IDEMPOTENCY_PQXX_AT_LEAST(7, 10)

// Delivers notices for as long as both this and the connection live.
class NoticeRegistration {
 public:
  NoticeRegistration(pqxx::connection& connection, NoticeHandler handler) {
    connection.set_notice_handler(
        [handler = std::move(handler)](pqxx::zview notice) {
          handler(std::string_view(notice.data(), notice.size()));
        });
  }
};

#else

class NoticeRegistration : private pqxx::errorhandler {
 public:
  NoticeRegistration(pqxx::connection& connection, NoticeHandler handler)
      : pqxx::errorhandler(connection), handler_(std::move(handler)) {}

 private:
  bool operator()(const char notice[]) noexcept override {
    handler_(notice);
    return true;
  }

  const NoticeHandler handler_;
};

#endif

#if IDEMPOTENCY_PQXX_AT_LEAST(7, 0)

inline void SetUp(pqxx::connection& connection) {
  connection.set_verbosity(pqxx::error_verbosity::verbose);
}

inline void Prepare(pqxx::connection& connection, const std::string& name,
                    const std::string& sql) {
  connection.prepare(name, sql);
}

// Begins what begins with its first statement.
inline void Begin(pqxx::dbtransaction&) {}

// Binary parameters, which must outlive the result.
inline pqxx::params Params(const std::vector<std::string>& values) {
  pqxx::params params;
  params.reserve(values.size());
  for (const std::string& value : values) {
    params.append(pqxx::binary_cast(value));
  }
  return params;
}

#else

// Without the silent reconnect that would lose the session's state.
inline void SetUp(pqxx::connection& connection) {
  connection.set_verbosity(pqxx::connection_base::verbose);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  connection.inhibit_reactivation(true);
#pragma GCC diagnostic pop
}

inline void Prepare(pqxx::connection_base& connection, const std::string& name,
                    const std::string& sql) {
  connection.prepare(name, sql);
  connection.prepare_now(name);
}

// A subtransaction sets its savepoint at its first exec(), and not for a
// statement with parameters: that one would stay when it is rolled back.
inline void Begin(pqxx::dbtransaction& transaction) {
  if (dynamic_cast<pqxx::subtransaction*>(&transaction) != nullptr) {
    transaction.exec("");
  }
}

inline auto Params(const std::vector<std::string>& values) {
  std::vector<pqxx::binarystring> params;
  params.reserve(values.size());
  for (const std::string& value : values) {
    params.emplace_back(value.data(), value.size());
  }
  return params;
}

#endif

// Runs a prepared statement, or one that is not, with binary parameters.
inline pqxx::result RunPrepared(pqxx::transaction_base& transaction,
                                const std::string& name,
                                const std::vector<std::string>& values) {
#if IDEMPOTENCY_PQXX_AT_LEAST(7, 10)
  return transaction.exec(pqxx::prepped{name}, Params(values));
#elif IDEMPOTENCY_PQXX_AT_LEAST(7, 0)
  return transaction.exec_prepared(name, Params(values));
#else
  return transaction.exec_prepared(
      name, pqxx::prepare::make_dynamic_params(Params(values)));
#endif
}

inline pqxx::result RunUnnamed(pqxx::transaction_base& transaction,
                               const std::string& sql,
                               const std::vector<std::string>& values) {
#if IDEMPOTENCY_PQXX_AT_LEAST(7, 10)
  return transaction.exec(sql, Params(values));
#elif IDEMPOTENCY_PQXX_AT_LEAST(7, 0)
  return transaction.exec_params(sql, Params(values));
#else
  return transaction.exec_params(
      sql, pqxx::prepare::make_dynamic_params(Params(values)));
#endif
}

}  // namespace idempotency::pqxx_compat

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_PQXX_COMPAT_H_
