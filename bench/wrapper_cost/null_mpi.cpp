// SPDX-License-Identifier: Apache-2.0
/// @file
/// The functions of MPI that are called, doing nothing, for a group of two: what is left to count are the library's own instructions. With the
/// header of MPICH, whose handles are numbers.

#include <mpi.h>

extern "C" {

int MPI_Initialized(int* flag) { return *flag = 1, MPI_SUCCESS; }
int MPI_Finalized(int* flag) { return *flag = 0, MPI_SUCCESS; }
int MPI_Query_thread(int* level) { return *level = MPI_THREAD_MULTIPLE, MPI_SUCCESS; }
int MPI_Comm_rank(MPI_Comm, int* rank) { return *rank = 0, MPI_SUCCESS; }
int MPI_Comm_size(MPI_Comm, int* size) { return *size = 2, MPI_SUCCESS; }
int MPI_Comm_test_inter(MPI_Comm, int* flag) { return *flag = 0, MPI_SUCCESS; }
int MPI_Comm_idup(MPI_Comm from, MPI_Comm* to, MPI_Request*) { return *to = from, MPI_SUCCESS; }
int MPI_Comm_split(MPI_Comm from, int, int, MPI_Comm* to) { return *to = from, MPI_SUCCESS; }
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler) { return MPI_SUCCESS; }
int MPI_Comm_free(MPI_Comm*) { return MPI_SUCCESS; }
int MPI_Error_string(int, char* text, int* length) { return *text = '\0', *length = 0, MPI_SUCCESS; }
double MPI_Wtime() { return 0; }
int MPI_Test(MPI_Request*, int* done, MPI_Status*) { return *done = 1, MPI_SUCCESS; }
int MPI_Testall(int, MPI_Request*, int* done, MPI_Status*) { return *done = 1, MPI_SUCCESS; }
int MPI_Improbe(int, int, MPI_Comm, int* found, MPI_Message*, MPI_Status*) { return *found = 0, MPI_SUCCESS; }
int MPI_Mrecv(void*, int, MPI_Datatype, MPI_Message*, MPI_Status*) { return MPI_SUCCESS; }
int MPI_Isend(void const*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) { return MPI_SUCCESS; }
int MPI_Irecv(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) { return MPI_SUCCESS; }
int MPI_Iallgather(void const*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm, MPI_Request*) { return MPI_SUCCESS; }
int MPI_Ialltoall(void const*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm, MPI_Request*) { return MPI_SUCCESS; }
int MPI_Iallreduce(void const*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request*) { return MPI_SUCCESS; }
int MPI_Ireduce_scatter_block(void const*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request*) { return MPI_SUCCESS; }
int MPI_Ireduce(void const*, void*, int, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Request*) { return MPI_SUCCESS; }
int MPI_Op_create(MPI_User_function*, int, MPI_Op*) { return MPI_SUCCESS; }
int MPI_Op_free(MPI_Op*) { return MPI_SUCCESS; }
int MPI_Type_contiguous(int, MPI_Datatype, MPI_Datatype*) { return MPI_SUCCESS; }
int MPI_Type_create_struct(int, int const*, MPI_Aint const*, MPI_Datatype const*, MPI_Datatype*) { return MPI_SUCCESS; }
int MPI_Type_create_resized(MPI_Datatype, MPI_Aint, MPI_Aint, MPI_Datatype*) { return MPI_SUCCESS; }
int MPI_Type_commit(MPI_Datatype*) { return MPI_SUCCESS; }
int MPI_Type_free(MPI_Datatype*) { return MPI_SUCCESS; }

}  // extern "C"
