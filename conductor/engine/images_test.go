package engine

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
)

// album is an image service with one image.
type album struct {
	id   string
	away error
}

func (a *album) Describe(_ context.Context, source string) (map[string]any, error) {
	switch {
	case a.away != nil:
		return nil, a.away
	case strings.HasPrefix(source, "http"):
		return nil, nil
	case source != a.id:
		return nil, node.Invalidf("Image %s could not be found", source)
	}
	return map[string]any{"image_os_hash_algo": "sha256", "image_os_hash_value": strings.Repeat("ab", 32),
		"image_disk_format": "raw", "image_checksum": nil}, nil
}

func (a *album) Address(n *node.Node, id string) string {
	if n.Job == nil {
		return "http://conductor/" + id
	}
	return "http://conductor/" + id + "/" + n.Job.ID
}

// TestImagesOfTheImageService: a node with no more than the ID of an image is deployed, and its agent gets an address
// of the job that it works for.
func TestImagesOfTheImageService(t *testing.T) {
	const id = "11111111-1111-4111-8111-111111111111"
	ctx, images := t.Context(), &album{id: id}
	w := newWorld(t)
	w.cfg.Images = images
	eng := w.start(nil).eng
	m := w.add("n1")
	w.walk(m, node.Available)
	set := func(source string, more ...string) {
		t.Helper()
		if _, err := w.store.UpdateNode(ctx, m.id, func(n *node.Node) error {
			n.InstanceInfo = map[string]any{"image_source": source}
			for i := 0; i < len(more); i += 2 {
				n.InstanceInfo[more[i]] = more[i+1]
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(words string) {
		t.Helper()
		var invalid *InvalidError
		if err := w.ask(m, node.Deploy); !errors.As(err, &invalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("deploy = %v, want an InvalidError with %q", err, words)
		}
		v, err := eng.Validate(ctx, m.id)
		if err != nil || *v["deploy"].Result || !strings.Contains(v["deploy"].Reason, words) {
			t.Errorf("Validate = %+v, %v, want %q", v["deploy"], err, words)
		}
	}
	set("22222222-2222-4222-8222-222222222222")
	refused("could not be found")
	set(id)
	images.away = errors.New("no route")
	var service *ServiceError
	if err := w.ask(m, node.Deploy); !errors.As(err, &service) {
		t.Errorf("deploy without the service = %v, want a ServiceError", err)
	}
	if v, err := eng.Validate(ctx, m.id); err != nil || *v["deploy"].Result {
		t.Errorf("Validate without the service = %+v, %v", v["deploy"], err)
	}
	images.away = nil
	if _, err := eng.DryRun(ctx, m.id, Request{Verb: node.Deploy, DeploySteps: []node.JobStep{{Interface: "deploy",
		Name: "write_image", Priority: 80, Args: []byte(`{"image_source": "` + id + `"}`)}}}); err == nil ||
		!strings.Contains(err.Error(), "name it in instance_info") {
		t.Errorf("an image of the service in a step: %v", err)
	}

	set("glance://"+id, "image_checksum", "of another image", "image_os_hash_algo", "md5", "display_name", "web")
	refused("could not be found") // the service knows it by its plain ID
	set(id, "image_checksum", "of another image", "image_os_hash_algo", "md5", "display_name", "web")
	if v, err := eng.Validate(ctx, m.id); err != nil || !*v["deploy"].Result {
		t.Errorf("Validate = %+v, %v", v["deploy"], err)
	}
	if n := w.node(m); n.InstanceInfo["image_checksum"] != "of another image" {
		t.Errorf("Validate changed the node: %v", n.InstanceInfo)
	}
	w.must(m, node.Deploy)
	job := w.node(m).Job
	w.until(m, "active", func(n *node.Node) bool { return n.Provision == node.Active })
	want := map[string]any{"image_source": id, "image_os_hash_algo": "sha256",
		"image_os_hash_value": strings.Repeat("ab", 32), "image_disk_format": "raw", "display_name": "web"}
	if d := cmp.Diff(want, w.node(m).InstanceInfo); d != "" {
		t.Errorf("instance_info (-want +got):\n%s", d)
	}
	args := map[string]any{}
	at := w.node(m)
	at.Job = job
	if err := eng.site().ImageArgs(at, args); err != nil || args["image_source"] != "http://conductor/"+id+"/"+job.ID {
		t.Errorf("the agent gets %v, %v", args, err)
	}
	if _, err := eng.planner().Stage(at, at.InstanceInfo); err == nil || !strings.Contains(err.Error(), "ahead") {
		t.Errorf("written ahead: %v", err)
	}
}

// TestImageServiceThatIsNotUsed: an image's ID is refused with the setting that is missing.
func TestImageServiceThatIsNotUsed(t *testing.T) {
	w := newWorld(t)
	eng := w.start(nil).eng
	n := &node.Node{InstanceInfo: map[string]any{"image_source": "11111111-1111-4111-8111-111111111111"}}
	if err := eng.site().CheckImage(n); err == nil || !strings.Contains(err.Error(), "glance.url") {
		t.Errorf("CheckImage = %v", err)
	}
}
