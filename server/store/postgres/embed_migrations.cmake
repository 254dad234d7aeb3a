# Writes the .cc file that holds the migrations:
#   cmake -D FOLDER=migrations -D OUTPUT=migrations.cc -P embed_migrations.cmake
cmake_minimum_required(VERSION 3.22)

file(GLOB ups ${FOLDER}/*.up.sql)
list(SORT ups)
set(source "#include \"server/store/postgres/migrations.h\"

namespace idempotency {
namespace {

constexpr Migration kMigrations[] = {
")
foreach(up IN LISTS ups)
  get_filename_component(file ${up} NAME)
  if(NOT file MATCHES "^([0-9][0-9][0-9][0-9][0-9][0-9])_([a-z0-9_]+)\\.up\\.sql$")
    message(FATAL_ERROR "${file} is not named NNNNNN_name.up.sql")
  endif()
  set(name ${CMAKE_MATCH_2})
  string(REGEX REPLACE "^0+" "" version ${CMAKE_MATCH_1})
  string(REPLACE ".up.sql" ".down.sql" down ${up})
  file(READ ${up} up_text)
  file(READ ${down} down_text)
  string(APPEND source "    {${version}, \"${name}\",
     R\"sql(${up_text})sql\",
     R\"sql(${down_text})sql\"},
")
endforeach()
string(APPEND source "};

}  // namespace

std::span<const Migration> EmbeddedMigrations() { return kMigrations; }

}  // namespace idempotency
")
file(WRITE ${OUTPUT} "${source}")
