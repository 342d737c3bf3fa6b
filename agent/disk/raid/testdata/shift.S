# Boot record of a member of a RAID 1: makes the array's data the disk that the BIOS shows, and starts its first sector.
#
# A member of an array carries the array's data unchanged, from some sector on. This record moves itself to the top of
# conventional memory, stays there behind INT 13h and adds that sector to every extended read or write of the boot drive;
# so the boot loader of the image in the array finds everything where it expects it, on whichever disk is left.
# Calls by cylinder, head and sector become extended ones, with the BIOS's own geometry: GRUB looks for disks by such a call.
#
# Assembled by hand, its bytes are in bootrecord.go; the package's test assembles it again and compares:
#   as --32 shift.S -o shift.o && ld -m elf_i386 -Ttext 0 --oformat binary -e start shift.o -o shift.bin

	.code16
	.text
	.globl start
start:
	cli
	xorw	%ax, %ax
	movw	%ax, %ss
	movw	$0x7c00, %sp
	movw	%ax, %ds
	sti
	cld
	decw	0x413			# one KiB less of memory for everybody else
	movw	0x413, %ax
	shlw	$6, %ax
	movw	%ax, %es
	movw	$0x7c00, %si
	xorw	%di, %di
	movw	$256, %cx
	rep movsw
	movb	%dl, %es:drive
	movl	0x4c, %eax		# the vector of INT 13h
	movl	%eax, %es:old
	pushw	%es
	pushw	$moved
	lret
moved:
	cli
	movw	$handler, 0x4c
	movw	%cs, 0x4e
	sti
	pushw	%cs
	popw	%ds
	movw	$packet, %si
	movb	drive, %dl
	movb	$0x42, %ah
	int	$0x13
	jc	failed
	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %es
	cmpw	$0xaa55, 0x7dfe
	jne	failed
	movb	%cs:drive, %dl
	ljmp	$0, $0x7c00
failed:
	pushw	%cs
	popw	%ds
	movw	$message, %si
1:	lodsb
	testb	%al, %al
	jz	2f
	movb	$0x0e, %ah
	movw	$7, %bx
	int	$0x10
	jmp	1b
2:	int	$0x18			# the next boot device
	hlt
	jmp	2b

handler:
	cmpb	%cs:drive, %dl
	jne	pass
	cmpb	$0x42, %ah		# extended read, write, verify
	jb	1f
	cmpb	$0x44, %ah
	jbe	shifted
	jmp	pass
1:	cmpb	$2, %ah			# read, write, verify by cylinder, head and sector
	jb	pass
	cmpb	$4, %ah
	jbe	chs
pass:
	ljmp	*%cs:old
shifted:
	pushl	%eax
	movl	%cs:offset, %eax
	addl	%eax, 8(%si)
	movl	%cs:offset+4, %eax
	adcl	%eax, 12(%si)
	popl	%eax
	pushfw
	lcall	*%cs:old
	pushfw
	pushl	%eax
	movl	%cs:offset, %eax
	subl	%eax, 8(%si)
	movl	%cs:offset+4, %eax
	sbbl	%eax, 12(%si)
	popl	%eax
	popfw
	sti
	lret	$2

chs:
	pushal
	pushw	%ds
	pushw	%es
	movw	%sp, %bp		# es 0, ds 2, bx 20, dx 24, cx 28, ax 32
	movb	$8, %ah
	xorw	%di, %di
	movw	%di, %es
	pushfw
	lcall	*%cs:old
	jc	3f
	andw	$0x3f, %cx		# sectors of a track
	movzbw	%dh, %di
	incw	%di			# heads
	movw	28(%bp), %ax
	xchgb	%ah, %al
	shrb	$6, %ah			# the cylinder
	mulw	%di
	shll	$16, %edx
	movw	%ax, %dx
	movzbl	25(%bp), %eax
	addl	%eax, %edx
	movzwl	%cx, %ecx
	imull	%ecx, %edx
	movb	28(%bp), %al
	andl	$0x3f, %eax
	decl	%eax
	addl	%eax, %edx
	xorl	%eax, %eax
	addl	%cs:offset, %edx
	adcl	%cs:offset+4, %eax
	pushl	%eax			# a packet: where on the disk, where in memory, how many sectors
	pushl	%edx
	pushw	(%bp)
	pushw	20(%bp)
	movzbw	32(%bp), %ax
	pushw	%ax
	pushw	$16
	pushw	%ss
	popw	%ds
	movw	%sp, %si
	movb	33(%bp), %ah
	addb	$0x40, %ah
	movb	24(%bp), %dl
	pushfw
	lcall	*%cs:old
3:	movw	%bp, %sp
	movb	%ah, 33(%bp)
	popw	%es
	popw	%ds
	popal
	sti
	lret	$2

packet:
	.byte	16, 0
	.word	1
	.word	0x7c00, 0
	.quad	0
message:
	.asciz	"Nothing to start in the array\r\n"
old:	.long	0
drive:	.byte	0
	.org	432
offset:	.quad	0
