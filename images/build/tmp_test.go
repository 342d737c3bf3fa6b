package build
import ("testing";"os";"log/slog")
func TestTmp(t *testing.T){ r,err:=Debian(t.Context(),Options{Out:"/tmp/g/deb",Fresh:true,Qcow2:true,RootPassword:"ingot",Log:slog.Default()}); if err!=nil{t.Fatal(err)}; r.Print(os.Stdout) }
