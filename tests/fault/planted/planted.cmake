# For each patch of this folder, with NAME its file's name:
#   - the patched sources, below NAME/ in the build folder;
#   - their objects, compiled as the library that they are of;
#   - idempotency-server-NAME, linked with these objects in front of the
#     libraries, so that the linker takes no other ones from there;
#   - NAME-PROGRAM for each "caught-by: linked PROGRAM" of the patch, linked in
#     the same way.
# planted_servers builds all servers, planted_tests the servers and the tests
# that the patches name.
add_custom_target(planted_servers)
add_custom_target(planted_tests)
add_dependencies(planted_tests planted_servers)

# The server's own allocator, which is found in its folder.
if(NOT IDEMPOTENCY_SANITIZE)
  pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)
  set(planted_allocator PkgConfig::JEMALLOC)
endif()

# Header lines of PATCH that begin with WORD and a colon, without that.
function(planted_header OUT PATCH WORD)
  file(STRINGS ${PATCH} lines REGEX "^${WORD}: ")
  list(TRANSFORM lines REPLACE "^${WORD}: " "")
  set(${OUT} "${lines}" PARENT_SCOPE)
endfunction()

# Compiles the SOURCES of one library with NAME/ first among the includes, and
# adds their objects to those of the bug.
function(planted_objects NAME LIBRARY)
  set(objects planted-${NAME}-${LIBRARY})
  add_library(${objects} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  target_include_directories(${objects} BEFORE PRIVATE
    ${CMAKE_CURRENT_BINARY_DIR}/${NAME})
  # Including what the library's generated headers are made by.
  target_link_libraries(${objects} PRIVATE
    $<TARGET_PROPERTY:${LIBRARY},LINK_LIBRARIES>)
  target_compile_options(${objects} PRIVATE -O1 -g1)
  # The sources that it is compiled with are made before.
  add_dependencies(${objects} planted-${NAME}-sources)
endfunction()

# A program of the target LIKE's objects, and of NAME's in front of them.
function(planted_program PROGRAM NAME LIKE)
  set(of_patch ${planted_object_targets})
  list(TRANSFORM of_patch REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  add_executable(${PROGRAM} EXCLUDE_FROM_ALL
    ${of_patch} $<TARGET_OBJECTS:${LIKE}> ${ARGN})
  set_target_properties(${PROGRAM} PROPERTIES LINKER_LANGUAGE CXX)
  # Dozens of them: what is not patched is debugged elsewhere.
  target_link_options(${PROGRAM} PRIVATE -Wl,--strip-debug)
endfunction()

function(plant_bug PATCH)
  get_filename_component(name ${PATCH} NAME_WE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PATCH})
  set(tree ${CMAKE_CURRENT_BINARY_DIR}/${name})

  file(STRINGS ${PATCH} changed REGEX "^\\+\\+\\+ b/")
  list(TRANSFORM changed REPLACE "^\\+\\+\\+ b/" "")
  set(patched ${changed})
  list(TRANSFORM patched PREPEND ${tree}/)
  set(copies)
  set(originals)
  foreach(file IN LISTS changed)
    list(APPEND originals ${CMAKE_SOURCE_DIR}/${file})
    list(APPEND copies COMMAND ${CMAKE_COMMAND} -E copy
         ${CMAKE_SOURCE_DIR}/${file} ${tree}/${file})
  endforeach()
  add_custom_command(
    OUTPUT ${patched}
    ${copies}
    COMMAND ${IDEMPOTENCY_PATCH} --quiet --strip=1 --fuzz=0 --forward
            --no-backup-if-mismatch --directory=${tree} --input=${PATCH}
    DEPENDS ${PATCH} ${originals}
    COMMENT "Planting ${name}"
    VERBATIM)
  add_custom_target(planted-${name}-sources DEPENDS ${patched})

  planted_header(compiled_too ${PATCH} compiled-too)
  separate_arguments(compiled_too)
  list(REMOVE_ITEM compiled_too ${changed})
  set(sources ${patched} ${compiled_too})
  list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/ REGEX "^server/")
  set(planted_object_targets)
  foreach(part core=idempotency_core store/postgres=idempotency_postgres
          rpc=idempotency_rpc)
    string(REGEX MATCH "^(.+)=(.+)$" part ${part})
    set(library ${CMAKE_MATCH_2})
    set(of_part ${sources})
    list(FILTER of_part INCLUDE REGEX "/server/${CMAKE_MATCH_1}/[^/]+\\.cc$")
    if(of_part)
      planted_objects(${name} ${library} ${of_part})
      list(APPEND planted_object_targets planted-${name}-${library})
    endif()
  endforeach()

  planted_program(idempotency-server-${name} ${name} idempotency-server)
  target_link_libraries(idempotency-server-${name} PRIVATE
    idempotency_app absl::synchronization ${planted_allocator})
  add_dependencies(planted_servers idempotency-server-${name})

  planted_header(instruments ${PATCH} caught-by)
  foreach(instrument IN LISTS instruments)
    if(NOT instrument MATCHES "^(linked|server) ([a-z0-9_]+)")
      continue()
    endif()
    set(program ${CMAKE_MATCH_2})
    if(CMAKE_MATCH_1 STREQUAL "server")
      add_dependencies(planted_tests ${program})
    elseif(NOT TARGET ${name}-${program})
      # The one suite whose objects are not the program's own.
      set(suite)
      if(program STREQUAL "postgres_contract_test")
        set(suite $<TARGET_OBJECTS:store_contract>)
      endif()
      planted_program(${name}-${program} ${name} ${program} ${suite})
      target_link_libraries(${name}-${program} PRIVATE
        $<TARGET_PROPERTY:${program},LINK_LIBRARIES>)
      add_dependencies(planted_tests ${name}-${program})
    endif()
  endforeach()
endfunction()

file(GLOB patches CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.patch)
foreach(patch IN LISTS patches)
  plant_bug(${patch})
endforeach()
